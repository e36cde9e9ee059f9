//! Links from an object's code to other objects: from a slot's address to the name that the loader binds
//! there. Also the start addresses of functions, from the unwind information that stripped objects have, too.
//!
//! Pure: ELF bytes in. The use of both is in [`flow`](super::flow).

use std::collections::HashMap;

use object::LittleEndian;
use object::elf::{self, Rela64, Sym64};
use object::read::elf::{Rela, Sym};
use unwind_tables::Architecture;
use unwind_tables::addr::Svma;
use unwind_tables::elf::ElfView;

use super::machine::{self, Flow, Target};
use memleak_process::dynamic::Dynamic;

/// Maximum number of relocations of one table, and of slots. The largest browsers have about a million of
/// each; a file that claims more can have a hole there, of any size.
const MAX_RELOCATIONS: usize = 1 << 23;
const MAX_SLOTS: usize = 1 << 20;

/// Symbol that the loader binds to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound<'a> {
    /// Defined by the object itself, unless another object interposes it.
    Local(Svma),
    /// Function of another object.
    Import(&'a [u8]),
}

/// The symbols bound to the object's slots, and the starts of its functions.
#[derive(Debug, Default)]
pub struct Linkage<'a> {
    bound: HashMap<Svma, Bound<'a>>,
    /// Ascending.
    starts: Vec<Svma>,
}

impl<'a> Linkage<'a> {
    /// Reads an ELF file; parts that cannot be read are left out.
    pub fn of(elf: &'a [u8]) -> Self {
        Self {
            bound: bound_slots(elf).unwrap_or_default(),
            starts: function_starts(elf).unwrap_or_default(),
        }
    }

    /// The symbol bound to a slot.
    pub fn bound_to(&self, slot: Svma) -> Option<Bound<'a>> {
        self.bound.get(&slot).copied()
    }

    /// Returns the symbol that the code at `target` jumps to, if it is a PLT entry, which other code calls or
    /// jumps to.
    pub fn bound_behind(&self, architecture: Architecture, code: &[u8], target: Svma) -> Option<Bound<'a>> {
        // On x86-64, `endbr64` and the jump; on AArch64, `bti`, `adrp`, `ldr`, `add` and the jump.
        let longest = match architecture {
            Architecture::X86_64 => 2,
            Architecture::Aarch64 => 5,
        };
        let mut entry = machine::instructions(architecture, code, target).take(longest);
        let end = entry.find(|instruction| instruction.flow != Flow::Next)?;
        let Flow::Jump(Target::Slot(slot)) = end.flow else {
            return None;
        };
        self.bound_to(slot)
    }

    /// True if a function, or a part of one, starts here.
    pub fn is_start(&self, svma: Svma) -> bool {
        self.starts.binary_search(&svma).is_ok()
    }
}

/// Slots and the symbols that relocations bind to them, from the dynamic segment.
fn bound_slots(elf: &[u8]) -> Option<HashMap<Svma, Bound<'_>>> {
    let endian = LittleEndian;
    let dynamic = Dynamic::of(elf)?;
    let symbols = dynamic.table(elf::DT_SYMTAB)?;
    let strings = dynamic.strings()?;
    let binds = match dynamic.machine() {
        elf::EM_AARCH64 => [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT],
        _ => [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT],
    };
    let mut bound_slots = HashMap::new();
    for (at, bytes) in [(elf::DT_JMPREL, elf::DT_PLTRELSZ), (elf::DT_RELA, elf::DT_RELASZ)] {
        let relocations = dynamic.table(at).zip(dynamic.value(bytes));
        let relocations = relocations.and_then(|(from, bytes)| {
            let count = usize::try_from(bytes).ok()? / size_of::<Rela64<LittleEndian>>();
            object::pod::slice_from_bytes::<Rela64<LittleEndian>>(from, count).ok()
        });
        let relocations = relocations.map_or(&[][..], |(relocations, _)| relocations);
        for relocation in relocations.iter().take(MAX_RELOCATIONS) {
            if bound_slots.len() == MAX_SLOTS {
                break;
            }
            let (kind, symbol) = (relocation.r_type(endian, false), relocation.r_sym(endian, false));
            if !binds.contains(&kind) {
                continue;
            }
            let into = (symbol as usize).checked_mul(size_of::<Sym64<LittleEndian>>());
            let bound = into.and_then(|into| symbols.get(into..)).and_then(|bytes| {
                let (symbol, _) = object::pod::from_bytes::<Sym64<LittleEndian>>(bytes).ok()?;
                Some(match symbol.st_shndx(endian) {
                    elf::SHN_UNDEF => Bound::Import(symbol.name(endian, strings).ok()?),
                    _ => Bound::Local(Svma::new(symbol.st_value(endian))),
                })
            });
            if let Some(bound) = bound {
                bound_slots.insert(Svma::new(relocation.r_offset(endian)), bound);
            }
        }
    }
    Some(bound_slots)
}

/// Returns the starts of functions that the search table of `.eh_frame_hdr` lists, ascending.
fn function_starts(elf: &[u8]) -> Option<Vec<Svma>> {
    let mut starts = ElfView::parse_any(elf).ok()?.function_starts();
    starts.sort_unstable();
    Some(starts)
}

/// The code from `svma` to the end of its segment's bytes in the file.
pub fn code_from<'a>(elf: &'a [u8], view: &ElfView, svma: Svma) -> Option<&'a [u8]> {
    let segment = view
        .segments()
        .iter()
        .find(|segment| segment.executable && unwind_tables::addr::contains(&segment.file_backed(), svma))?;
    let into = svma.offset_from(segment.svma.start);
    let from = usize::try_from(segment.offset.start.get().checked_add(into)?).ok()?;
    let end = usize::try_from(segment.offset.end.get()).ok()?;
    elf.get(from..end)
}
