//! Finds out whether the code that a HotSpot JVM generates keeps frame pointers, by its flag `PreserveFramePointer`, in its memory; and where it
//! has its interpreter and its compiled methods, which have no code among them that does not. A few stubs, which are elsewhere, do not.
//!
//! `libjvm.so` describes its own variables and types to debuggers, by tables that it exports (HotSpot's `vmStructs.hpp`, which the
//! serviceability agent reads). They lead to the table of all flags. Untrusted input: tables are bounded, and what does not fit is taken for
//! a JVM that keeps none.

use std::ops::Range;

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use unwind_tables::addr::{Avma, Bias, Svma};

use super::mappings::{MappedCode, Mappings};
use super::modules::{Module, Modules};
use super::process_memory::ProcessMemory;

const LIBRARY: &str = "libjvm.so";
/// The JVM's flag, off by default.
const FLAG: &[u8] = b"PreserveFramePointer";
/// Names of the type of a flag: since JDK 11, and before.
const FLAG_TYPES: [&[u8]; 2] = [b"JVMFlag", b"Flag"];
/// MAX entries of each table: JDK 17 has 3000 variables, 900 types and 1500 flags.
const MAX_ENTRIES: u64 = 1 << 14;
/// MAX bytes of a flag's description: it has 24.
const MAX_FLAG_BYTES: u64 = 256;

/// MAX bytes of the interpreter, which has 200 KiB, and MAX heaps of code, which are three.
const MAX_INTERPRETER: u64 = 16 << 20;
const MAX_HEAPS: u64 = 8;
/// Fields that lead to the flags, to the interpreter's code and to heaps of code: names of the type, and of the field.
const FIELDS: [(&[&[u8]], &[u8]); 13] = [
    (&FLAG_TYPES, b"flags"),
    (&FLAG_TYPES, b"numFlags"),
    (&FLAG_TYPES, b"_name"),
    (&FLAG_TYPES, b"_addr"),
    (&[b"AbstractInterpreter"], b"_code"),
    (&[b"StubQueue"], b"_stub_buffer"),
    (&[b"StubQueue"], b"_buffer_limit"),
    (&[b"CodeCache"], b"_heaps"),
    (&[b"CodeHeap"], b"_memory"),
    (&[b"VirtualSpace"], b"_low_boundary"),
    (&[b"VirtualSpace"], b"_high_boundary"),
    (&[b"GrowableArray<int>"], b"_data"),
    // Since JDK 16, and before.
    (&[b"GrowableArrayBase", b"GenericGrowableArray"], b"_len"),
];

/// Entry of `gHotSpotVMStructs`: names of type and field, the type's name, whether it is static, its offset, its address.
const VARIABLE_BYTES: u64 = 48;
/// Entry of `gHotSpotVMTypes`: its name, that of its base, three numbers, its size.
const TYPE_BYTES: u64 = 40;

/// Frame pointers in the code that a process generates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FramePointers {
    /// Set if the code is known to keep them.
    pub(super) are_kept: bool,
    /// Where all code is known to keep them; ascending, without overlap.
    pub(super) methods: Vec<Range<Avma>>,
}

/// Returns what is known of the code that a JVM among these mappings generates.
pub(super) fn frame_pointers(
    mappings: &Mappings,
    modules: &Modules,
    memory: &ProcessMemory,
) -> FramePointers {
    let has_generated = mappings
        .entries()
        .iter()
        .any(|entry| entry.code == MappedCode::Anonymous);
    if !has_generated {
        return FramePointers::default();
    }
    let placed = mappings.entries().iter().filter_map(|entry| match entry.code {
        MappedCode::Module { module, bias } => Some((modules.get(module)?, bias)),
        MappedCode::Anonymous | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    });
    let jvms = placed.filter(|(module, _)| module.path.file_name().is_some_and(|name| name == LIBRARY));
    let mut found = jvms.filter_map(|(module, bias)| Jvm { module, bias, memory }.frame_pointers());
    found.find(|found| found.are_kept).unwrap_or_default()
}

/// Ranges in order; of those that overlap, the first.
fn ascending(mut ranges: Vec<Range<Avma>>) -> Vec<Range<Avma>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut end = Avma::new(0);
    ranges.retain(|range| {
        let is_behind = end <= range.start && range.start < range.end;
        if is_behind {
            end = range.end;
        }
        is_behind
    });
    ranges
}

struct Jvm<'a> {
    module: &'a Module,
    bias: Bias,
    memory: &'a ProcessMemory,
}

/// The fields of [`FIELDS`], where the JVM has them.
type Fields = [Option<Field>; FIELDS.len()];

/// A field, as the JVM describes it.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// In its object.
    offset: u64,
    /// Its place, if it is static.
    address: Avma,
}

impl Jvm<'_> {
    /// Returns what is known of its code; `None` if its tables or its flag are not found.
    fn frame_pointers(&self) -> Option<FramePointers> {
        let [variables, types] = self.tables()?;
        let fields = self.fields(variables)?;
        let are_kept = self.flag(types, &fields)? != 0;
        let methods = self.methods(&fields).filter(|_| are_kept);
        Some(FramePointers {
            are_kept,
            methods: ascending(methods.unwrap_or_default()),
        })
    }

    /// Where the interpreter is, and the compiled methods, unless there is other code in the same heap; `None` if it is not found, or not
    /// there yet.
    fn methods(&self, fields: &Fields) -> Option<Vec<Range<Avma>>> {
        let &[_, _, _, _, code, buffer, bytes, ..] = fields;
        let queue = Avma::new(self.word(code?.address)?);
        let start = Avma::new(self.word(queue.wrapping_add(buffer?.offset))?);
        let bytes = u64::from(self.half(queue.wrapping_add(bytes?.offset))?).min(MAX_INTERPRETER);
        let interpreter = start..start.wrapping_add(bytes);
        let mut methods = self.heaps(fields).unwrap_or_default();
        // The interpreter's heap has all code that is not of methods.
        methods.retain(|heap| !heap.contains(&interpreter.start));
        methods.push(interpreter);
        Some(methods)
    }

    /// Heaps of code.
    fn heaps(&self, fields: &Fields) -> Option<Vec<Range<Avma>>> {
        let &[.., heaps, memory, low, high, data, length] = fields;
        let list = Avma::new(self.word(heaps?.address)?);
        let length = u64::from(self.half(list.wrapping_add(length?.offset))?).min(MAX_HEAPS);
        let first = Avma::new(self.word(list.wrapping_add(data?.offset))?);
        let (memory, low, high) = (memory?.offset, low?.offset, high?.offset);
        let heap = |number: u64| {
            let space = Avma::new(self.word(first.wrapping_add(8 * number))?).wrapping_add(memory);
            let [low, high] = [low, high].map(|at| self.word(space.wrapping_add(at)).map(Avma::new));
            Some(low?..high?)
        };
        (0..length).map(heap).collect()
    }

    fn fields(&self, variables: Avma) -> Option<Fields> {
        let mut fields = [None; FIELDS.len()];
        self.each(variables, VARIABLE_BYTES, |entry| {
            let [Some(kind), Some(name), Some(offset), Some(address)] =
                [0, 8, 32, 40].map(|at| word_at(entry, at))
            else {
                return;
            };
            for (field, (kinds, wanted)) in fields.iter_mut().zip(FIELDS) {
                if self.is_named(name, wanted) && kinds.iter().any(|known| self.is_named(kind, known)) {
                    *field = Some(Field {
                        offset,
                        address: Avma::new(address),
                    });
                }
            }
        })?;
        Some(fields)
    }

    /// The value of the flag; `None` if it is not found.
    fn flag(&self, types: Avma, fields: &Fields) -> Option<u8> {
        let &[first, count, name, value, ..] = fields;
        let bytes = self.flag_bytes(types)?;
        let (name_at, value_at) = (name?.offset, value?.offset);
        let first = Avma::new(self.word(first?.address)?);
        let count = self.word(count?.address)?.min(MAX_ENTRIES);
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

    /// Bytes of a flag's description.
    fn flag_bytes(&self, types: Avma) -> Option<u64> {
        let mut bytes = None;
        self.each(types, TYPE_BYTES, |entry| {
            if word_at(entry, 0).is_some_and(|name| self.is_flag(name)) {
                bytes = word_at(entry, 32);
            }
        })?;
        bytes.filter(|bytes| (16..=MAX_FLAG_BYTES).contains(bytes))
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

    fn is_flag(&self, name: u64) -> bool {
        FLAG_TYPES.iter().any(|known| self.is_named(name, known))
    }

    /// Returns whether the constant string at an address is this one, by the file: it is not written to.
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

    /// Ranges are in order, and do not overlap.
    #[test]
    fn ranges_ascend() {
        let range = |start, end| Avma::new(start)..Avma::new(end);
        let found = ascending(vec![
            range(30, 40),
            range(10, 20),
            range(15, 25),
            range(20, 20),
            range(20, 30),
            range(9, 1),
        ]);
        assert_eq!(found, [range(10, 20), range(20, 30), range(30, 40)]);
    }
}
