//! Finds out whether the code that a HotSpot JVM generates keeps frame pointers: by its flag `PreserveFramePointer`, in its memory.
//!
//! `libjvm.so` describes its own variables and types to debuggers, by tables that it exports (HotSpot's `vmStructs.hpp`, which the
//! serviceability agent reads). They lead to the table of all flags. Untrusted input: tables are bounded, and what does not fit is taken for
//! a JVM that keeps none.

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

/// Entry of `gHotSpotVMStructs`: names of type and field, the type's name, whether it is static, its offset, its address.
const VARIABLE_BYTES: u64 = 48;
/// Entry of `gHotSpotVMTypes`: its name, that of its base, three numbers, its size.
const TYPE_BYTES: u64 = 40;

/// Returns whether a JVM among these mappings generates code that keeps frame pointers.
pub(super) fn keeps_frame_pointers(mappings: &Mappings, modules: &Modules, memory: &ProcessMemory) -> bool {
    let has_generated = mappings
        .entries()
        .iter()
        .any(|entry| entry.code == MappedCode::Anonymous);
    if !has_generated {
        return false;
    }
    let placed = mappings.entries().iter().filter_map(|entry| match entry.code {
        MappedCode::Module { module, bias } => Some((modules.get(module)?, bias)),
        MappedCode::Anonymous | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    });
    let mut jvms = placed.filter(|(module, _)| module.path.file_name().is_some_and(|name| name == LIBRARY));
    jvms.any(|(module, bias)| {
        let jvm = Jvm { module, bias, memory };
        jvm.flag().is_some_and(|value| value != 0)
    })
}

struct Jvm<'a> {
    module: &'a Module,
    bias: Bias,
    memory: &'a ProcessMemory,
}

/// Where the JVM has its flags, and what one looks like.
#[derive(Default)]
struct Flags {
    first: Option<Avma>,
    count: Option<Avma>,
    name_at: Option<u64>,
    value_at: Option<u64>,
}

impl Jvm<'_> {
    /// The value of the flag; `None` if it is not found.
    fn flag(&self) -> Option<u8> {
        let [variables, types] = self.tables()?;
        let flags = self.describe_flags(variables)?;
        let bytes = self.flag_bytes(types)?;
        let (name_at, value_at) = (flags.name_at?, flags.value_at?);
        let first = Avma::new(self.word(flags.first?)?);
        let count = self.word(flags.count?)?.min(MAX_ENTRIES);
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

    fn describe_flags(&self, variables: Avma) -> Option<Flags> {
        let mut flags = Flags::default();
        self.each(variables, VARIABLE_BYTES, |entry| {
            let [kind, field, offset, address] = [0, 8, 32, 40].map(|at| word_at(entry, at));
            let is = |name| field.is_some_and(|field| self.is_named(field, name));
            if !kind.is_some_and(|kind| self.is_flag(kind)) {
                return;
            }
            if is(b"flags") {
                flags.first = address.map(Avma::new);
            } else if is(b"numFlags") {
                flags.count = address.map(Avma::new);
            } else if is(b"_name") {
                flags.name_at = offset;
            } else if is(b"_addr") {
                flags.value_at = offset;
            }
        })?;
        Some(flags)
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
