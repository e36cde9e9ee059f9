//! Finds out whether the code that a HotSpot JVM generates keeps frame pointers, by its flag
//! `PreserveFramePointer`, in its memory; and where that code is. If the flag is set, the interpreter and all
//! compiled methods keep them; two stubs do not.
//!
//! `libjvm.so` describes its own variables and types to debuggers, by tables that it exports (HotSpot's
//! `vmStructs.hpp`, which the serviceability agent reads). They lead to the table of all flags. Untrusted
//! input: tables are bounded, and a JVM whose tables are not as expected is treated as one that keeps none.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use unwind_tables::addr::{Avma, Bias, Svma};

use super::jvm_code::{JvmCode, KnownCode, KnownCodeKind};
use super::mappings::{MappedCode, Mappings};
use super::modules::{Module, Modules};
use super::process_memory::ProcessMemory;

/// Longest time that a JVM is expected to take to start up: one that has no code by then, since it was
/// mapped, is not waited for.
pub const LONGEST_JVM_BEGINNING: Duration = Duration::from_secs(5);

const LIBRARY: &str = "libjvm.so";
/// The JVM's flag, off by default.
const FLAG: &[u8] = b"PreserveFramePointer";
/// Type of the header of each block in a code heap.
const BLOCK_TYPE: &[u8] = b"HeapBlock";
/// Names of the type of a flag: since JDK 11, and before.
const FLAG_TYPES: [&[u8]; 2] = [b"JVMFlag", b"Flag"];
/// Maximum number of entries of each table. JDK 17 has 3000 variables, 900 types and 1500 flags.
const MAX_ENTRIES: u64 = 1 << 14;
/// Maximum size of a flag's description in bytes. It has 24.
const MAX_FLAG_BYTES: u64 = 256;

/// Upper bounds for untrusted values. Typical: 200 KiB of interpreter, 3 code heaps.
const MAX_INTERPRETER: u64 = 16 << 20;
const MAX_HEAPS: u64 = 8;
/// Maximum number of blocks of a heap that are looked at. A heap has 1000, with the stubs among the first.
const MAX_BLOCKS: usize = 2048;
/// Maximum number of bytes before the code of a block: its header and its description.
const MAX_BLOCK_START: u64 = 512;
/// Types of a block's length, and their bits: JDK 25 has the first, JDK 21 the second.
const LENGTH_TYPES: [(&[u8], u32); 2] = [(b"uint32_t", 32), (b"size_t", 64)];
/// Stubs that push the frame pointer and do not set it, and the number of words in their frames: the frame
/// pointer and the return address.
const STUBS: [&[u8]; 2] = [b"UncommonTrapBlob", b"ExceptionBlob"];
const STUB_FRAME_WORDS: u64 = 2;
/// A field to be found: possible names of its type, its name, and its place in [`Fields`].
type Wanted = (
    &'static [&'static [u8]],
    &'static [u8],
    fn(&mut Fields) -> &mut Option<Field>,
);
const FIELDS: [Wanted; 18] = [
    (&FLAG_TYPES, b"flags", |fields| &mut fields.flags),
    (&FLAG_TYPES, b"numFlags", |fields| &mut fields.flag_count),
    (&FLAG_TYPES, b"_name", |fields| &mut fields.flag_name),
    (&FLAG_TYPES, b"_addr", |fields| &mut fields.flag_value),
    (&[b"AbstractInterpreter"], b"_code", |fields| {
        &mut fields.interpreter
    }),
    (&[b"StubQueue"], b"_stub_buffer", |fields| &mut fields.buffer),
    (&[b"StubQueue"], b"_buffer_limit", |fields| {
        &mut fields.buffer_bytes
    }),
    (&[b"CodeCache"], b"_heaps", |fields| &mut fields.heaps),
    (&[b"CodeHeap"], b"_memory", |fields| &mut fields.heap_memory),
    (&[b"VirtualSpace"], b"_low_boundary", |fields| &mut fields.low),
    (&[b"VirtualSpace"], b"_high_boundary", |fields| &mut fields.high),
    (&[b"GrowableArray<int>"], b"_data", |fields| &mut fields.list_data),
    // Since JDK 16, and before.
    (
        &[b"GrowableArrayBase", b"GenericGrowableArray"],
        b"_len",
        |fields| &mut fields.list_length,
    ),
    (&[b"CodeHeap"], b"_log2_segment_size", |fields| {
        &mut fields.log2_segment
    }),
    (&[b"HeapBlock::Header"], b"_length", |fields| {
        &mut fields.block_length
    }),
    (&[b"HeapBlock::Header"], b"_used", |fields| &mut fields.block_used),
    (&[b"CodeBlob"], b"_name", |fields| &mut fields.blob_name),
    (&[b"CodeBlob"], b"_frame_size", |fields| &mut fields.blob_frame),
];

/// Entry of `gHotSpotVMStructs`: names of type and field, the type's name, whether it is static, its offset,
/// its address.
const VARIABLE_BYTES: u64 = 48;
/// Entry of `gHotSpotVMTypes`: its name, that of its base, three numbers, its size.
const TYPE_BYTES: u64 = 40;

/// The libraries of JVMs among these mappings, with their biases.
pub(super) fn libraries(mappings: &Mappings, modules: &Modules) -> Vec<(Arc<Module>, Bias)> {
    let entries = mappings.entries().iter();
    let placed = entries.filter_map(|entry| match entry.code {
        MappedCode::Module { module, bias } => Some((modules.shared(module)?, bias)),
        MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    });
    placed
        .filter(|(module, _)| module.path.file_name().is_some_and(|name| name == LIBRARY))
        .collect()
}

/// Returns the facts that are known about the code that a JVM with one of these libraries generates.
pub(super) fn jvm_code(libraries: &[(Arc<Module>, Bias)], memory: &ProcessMemory) -> JvmCode {
    let begins = JvmCode {
        begins: true,
        pushes_frame_pointers: true,
        ..JvmCode::default()
    };
    let found = libraries.iter().map(|&(ref module, bias)| {
        Jvm { module, bias, memory }
            .code()
            .unwrap_or_else(|| begins.clone())
    });
    // Of several JVMs, prefer one that keeps frame pointers.
    found
        .max_by_key(|found| (found.keeps_frame_pointers, found.begins))
        .unwrap_or_default()
}

/// Sorts code by address. Of overlapping ranges, the first stays.
fn ascending(mut known: Vec<KnownCode>) -> Vec<KnownCode> {
    known.sort_by_key(|code| code.range.start);
    let mut end = Avma::new(0);
    known.retain(|KnownCode { range, .. }| {
        let is_behind = end <= range.start && range.start < range.end;
        if is_behind {
            end = range.end;
        }
        is_behind
    });
    known
}

struct Jvm<'a> {
    module: &'a Module,
    bias: Bias,
    memory: &'a ProcessMemory,
}

/// Fields that lead to the flags, the interpreter's code, the code heaps and the blocks in them, where the
/// JVM has them.
#[derive(Default)]
struct Fields {
    /// All flags, and how many they are.
    flags: Option<Field>,
    flag_count: Option<Field>,
    flag_name: Option<Field>,
    /// Address of a flag's value.
    flag_value: Option<Field>,
    /// Queue of the interpreter's code: its start, and its size in bytes.
    interpreter: Option<Field>,
    buffer: Option<Field>,
    buffer_bytes: Option<Field>,
    /// List of code heaps.
    heaps: Option<Field>,
    list_data: Option<Field>,
    list_length: Option<Field>,
    /// Memory of a heap, within the heap, and its bounds, within the memory.
    heap_memory: Option<Field>,
    low: Option<Field>,
    high: Option<Field>,
    /// Binary logarithm of the unit of block lengths.
    log2_segment: Option<Field>,
    block_length: Option<Field>,
    block_used: Option<Field>,
    /// Name of the code in a block, and the words of its frame.
    blob_name: Option<Field>,
    blob_frame: Option<Field>,
}

/// A heap of code.
struct Heap {
    range: Range<Avma>,
    /// Unit of its blocks' lengths, in bytes; `None` if not known.
    segment_bytes: Option<u64>,
}

/// Layout of a heap's blocks: offsets of their fields, in bytes from the block's start.
#[derive(Clone, Copy)]
struct Blocks {
    length: u64,
    length_bits: u32,
    used: u64,
    name: u64,
    frame: u64,
}

/// A block of a heap.
struct Block {
    range: Range<Avma>,
    is_stub: bool,
}

/// A field, as the JVM describes it.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// Offset in its object.
    offset: u64,
    /// Address, if it is static.
    address: Avma,
    /// Address of its type's name.
    type_name: u64,
}

impl Jvm<'_> {
    /// Returns the facts that are known about its code; `None` if there are none yet: its tables are not
    /// found, or it has no interpreter, which it makes once it has read its flags.
    fn code(&self) -> Option<JvmCode> {
        let [variables, types] = self.tables()?;
        let fields = self.fields(variables)?;
        if self.word(fields.interpreter?.address)? == 0 {
            return None;
        }
        let Some(flag) = self.flag(types, &fields) else {
            return Some(JvmCode {
                pushes_frame_pointers: true,
                lacks: Some("its flags"),
                ..JvmCode::default()
            });
        };
        let keeps_frame_pointers = flag != 0;
        let code = keeps_frame_pointers.then(|| self.known_code(types, &fields));
        let lacks = match &code {
            Some(None) => Some("where its code is"),
            Some(Some(_)) if self.blocks(types, &fields).is_none() => Some("its stubs"),
            _ => None,
        };
        let known = code.flatten().unwrap_or_default();
        let stubs = known.iter().filter(|code| code.kind == KnownCodeKind::Stub);
        // The compilers make the stubs only when the JVM already runs.
        let begins = keeps_frame_pointers && stubs.count() < STUBS.len();
        Some(JvmCode {
            begins,
            pushes_frame_pointers: true,
            keeps_frame_pointers,
            known: ascending(known),
            lacks,
        })
    }

    /// Finds the interpreter, the heaps of compiled methods that have no other code, and the stubs; `None` if
    /// the interpreter is not found, or not there yet.
    fn known_code(&self, types: Avma, fields: &Fields) -> Option<Vec<KnownCode>> {
        let queue = Avma::new(self.word(fields.interpreter?.address)?);
        let start = Avma::new(self.word(queue.wrapping_add(fields.buffer?.offset))?);
        let bytes = self.half(queue.wrapping_add(fields.buffer_bytes?.offset))?;
        let bytes = u64::from(bytes).min(MAX_INTERPRETER);
        let interpreter = start..start.wrapping_add(bytes);
        let heaps = self.heaps(fields).unwrap_or_default();
        // The interpreter's heap has all code other than methods.
        let (others, methods): (Vec<_>, Vec<_>) = heaps
            .into_iter()
            .partition(|heap| heap.range.contains(&interpreter.start));
        let blocks = self.blocks(types, fields);
        let stubs = others
            .iter()
            .zip(blocks)
            .flat_map(|(heap, blocks)| self.stubs(heap, blocks));
        let methods = methods.into_iter().map(|heap| heap.range).chain([interpreter]);
        let known = |kind| move |range| KnownCode { range, kind };
        let methods = methods.map(known(KnownCodeKind::Methods));
        Some(methods.chain(stubs.map(known(KnownCodeKind::Stub))).collect())
    }

    /// Layout of the blocks in code heaps; `None` if it is not found.
    fn blocks(&self, types: Avma, fields: &Fields) -> Option<Blocks> {
        let start = self.size_of(types, &[BLOCK_TYPE])?;
        let length = fields.block_length?;
        let length_type = LENGTH_TYPES
            .iter()
            .find(|(name, _)| self.is_named(length.type_name, name))?;
        let blocks = Blocks {
            length: length.offset,
            length_bits: length_type.1,
            used: fields.block_used?.offset,
            name: start.checked_add(fields.blob_name?.offset)?,
            frame: start.checked_add(fields.blob_frame?.offset)?,
        };
        let offsets = [blocks.length, blocks.used, blocks.name, blocks.frame];
        offsets
            .iter()
            .all(|&at| at <= MAX_BLOCK_START - 8)
            .then_some(blocks)
    }

    /// Finds the stubs in a heap.
    fn stubs(&self, heap: &Heap, blocks: Blocks) -> Vec<Range<Avma>> {
        let mut found = Vec::new();
        let mut at = heap.range.start;
        for _ in 0..MAX_BLOCKS {
            // Beyond the last block, or beyond the part in use.
            let Some(block) = self.block(heap, blocks, at) else {
                break;
            };
            if block.is_stub {
                found.push(block.range.clone());
            }
            if found.len() == STUBS.len() || !heap.range.contains(&block.range.end) {
                break;
            }
            at = block.range.end;
        }
        found
    }

    /// The block at an address; `None` if there is none.
    fn block(&self, heap: &Heap, blocks: Blocks, at: Avma) -> Option<Block> {
        let bytes = self.read(at, MAX_BLOCK_START)?;
        let length = word_at(&bytes, blocks.length)? & (u64::MAX >> (u64::BITS - blocks.length_bits));
        let length = length.checked_mul(heap.segment_bytes?)?;
        let end = Avma::new(at.get().checked_add(length).filter(|&end| end > at.get())?);
        let is_used = word_at(&bytes, blocks.used)? & 0xff != 0;
        let name = word_at(&bytes, blocks.name)?;
        let frame_words = word_at(&bytes, blocks.frame)? & u64::from(u32::MAX);
        Some(Block {
            range: at..end,
            is_stub: is_used && frame_words == STUB_FRAME_WORDS && self.is_one_of(name, &STUBS),
        })
    }

    /// Heaps of code.
    fn heaps(&self, fields: &Fields) -> Option<Vec<Heap>> {
        let list = Avma::new(self.word(fields.heaps?.address)?);
        let length = self.half(list.wrapping_add(fields.list_length?.offset))?;
        let length = u64::from(length).min(MAX_HEAPS);
        let first = Avma::new(self.word(list.wrapping_add(fields.list_data?.offset))?);
        let (memory, low, high) = (
            fields.heap_memory?.offset,
            fields.low?.offset,
            fields.high?.offset,
        );
        let heap = |number: u64| {
            let heap = Avma::new(self.word(first.wrapping_add(8 * number))?);
            let space = heap.wrapping_add(memory);
            let [low, high] = [low, high].map(|at| self.word(space.wrapping_add(at)).map(Avma::new));
            let log2 = fields.log2_segment;
            let log2 = log2.and_then(|field| self.half(heap.wrapping_add(field.offset)));
            Some(Heap {
                range: low?..high?,
                segment_bytes: log2.and_then(|log2| 1u64.checked_shl(log2)),
            })
        };
        (0..length).map(heap).collect()
    }

    fn fields(&self, variables: Avma) -> Option<Fields> {
        let mut fields = Fields::default();
        self.each(variables, VARIABLE_BYTES, |entry| {
            let [
                Some(kind),
                Some(name),
                Some(type_name),
                Some(offset),
                Some(address),
            ] = [0, 8, 16, 32, 40].map(|at| word_at(entry, at))
            else {
                return;
            };
            for (kinds, wanted, place) in FIELDS {
                if self.is_named(name, wanted) && self.is_one_of(kind, kinds) {
                    *place(&mut fields) = Some(Field {
                        offset,
                        address: Avma::new(address),
                        type_name,
                    });
                }
            }
        })?;
        Some(fields)
    }

    /// The value of the flag; `None` if it is not found.
    fn flag(&self, types: Avma, fields: &Fields) -> Option<u8> {
        let bytes = self
            .size_of(types, &FLAG_TYPES)
            .filter(|bytes| (16..=MAX_FLAG_BYTES).contains(bytes))?;
        let (name_at, value_at) = (fields.flag_name?.offset, fields.flag_value?.offset);
        let first = Avma::new(self.word(fields.flags?.address)?);
        let count = self.word(fields.flag_count?.address)?.min(MAX_ENTRIES);
        let entries = self.read(first, count.checked_mul(bytes)?)?;
        let mut entries = entries.chunks_exact(usize::try_from(bytes).ok()?);
        let found =
            entries.find(|entry| word_at(entry, name_at).is_some_and(|name| self.is_named(name, FLAG)))?;
        let mut value = [0];
        let address = Avma::new(word_at(found, value_at)?);
        self.memory.read_exact_at(&mut value, address).ok()?;
        Some(value[0])
    }

    /// Addresses of the tables of variables and of types.
    fn tables(&self) -> Option<[Avma; 2]> {
        let elf = ElfFile64::<LittleEndian>::parse(self.module.bytes()).ok()?;
        let table = |name| {
            let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name))?;
            let variable = self.bias.to_avma(Svma::new(symbol.address()));
            self.word(variable).map(Avma::new)
        };
        Some([table("gHotSpotVMStructs")?, table("gHotSpotVMTypes")?])
    }

    /// Size in bytes of a type that has one of these names.
    fn size_of(&self, types: Avma, names: &[&[u8]]) -> Option<u64> {
        let mut bytes = None;
        self.each(types, TYPE_BYTES, |entry| {
            if word_at(entry, 0).is_some_and(|name| self.is_one_of(name, names)) {
                bytes = word_at(entry, 32);
            }
        })?;
        bytes
    }

    /// Calls `with` for each entry of a table, which ends in one without a name.
    fn each(&self, table: Avma, bytes: u64, mut with: impl FnMut(&[u8])) -> Option<()> {
        const AT_ONCE: u64 = 64;
        for first in (0..MAX_ENTRIES).step_by(64) {
            let entries = self.read(table.wrapping_add(first * bytes), AT_ONCE * bytes)?;
            for entry in entries.chunks_exact(usize::try_from(bytes).ok()?) {
                if word_at(entry, 0)? == 0 {
                    return Some(());
                }
                with(entry);
            }
        }
        None
    }

    fn is_one_of(&self, name: u64, known: &[&[u8]]) -> bool {
        known.iter().any(|known| self.is_named(name, known))
    }

    /// Returns true if the constant string at an address is this one. Compares the file's bytes, as the
    /// string is never written to.
    fn is_named(&self, address: u64, name: &[u8]) -> bool {
        let svma = self.bias.to_svma(Avma::new(address));
        let segment = self
            .module
            .segments()
            .iter()
            .find(|segment| segment.svma.contains(&svma));
        let found = segment.and_then(|segment| {
            let offset = segment
                .offset
                .start
                .wrapping_add(svma.offset_from(segment.svma.start));
            let bytes = self.module.bytes().get(usize::try_from(offset.get()).ok()?..)?;
            bytes.get(..=name.len())
        });
        found.is_some_and(|found| found.split_last() == Some((&0, name)))
    }

    fn half(&self, address: Avma) -> Option<u32> {
        let bytes = self.read(address, 4)?;
        Some(u32::from_le_bytes(*bytes.first_chunk()?))
    }

    fn word(&self, address: Avma) -> Option<u64> {
        word_at(&self.read(address, 8)?, 0)
    }

    fn read(&self, address: Avma, bytes: u64) -> Option<Vec<u8>> {
        let mut read = vec![0; usize::try_from(bytes).ok()?];
        self.memory.read_exact_at(&mut read, address).ok()?;
        Some(read)
    }
}

fn word_at(bytes: &[u8], at: u64) -> Option<u64> {
    let bytes = bytes.get(usize::try_from(at).ok()?..)?;
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code is in order, and does not overlap.
    #[test]
    fn known_code_ascends() {
        let code = |start, end, kind| KnownCode {
            range: Avma::new(start)..Avma::new(end),
            kind,
        };
        let expected = [
            code(10, 20, KnownCodeKind::Methods),
            code(20, 30, KnownCodeKind::Stub),
            code(30, 40, KnownCodeKind::Methods),
        ];
        let [first, second, third] = expected.clone();
        let others =
            [(15, 25), (20, 20), (9, 1)].map(|(start, end)| code(start, end, KnownCodeKind::Methods));
        let all = [&[third, first][..], &others, &[second]].concat();
        assert_eq!(ascending(all), expected);
    }
}
