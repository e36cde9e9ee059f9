//! Claims about the probe sites in an object.

use std::collections::BTreeSet;
use std::io::Write;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use unwind_tables::addr::{FileOffset, Svma};
use unwind_tables::{Architecture, ElfView};

use crate::allocator::discovery::function_code;
use crate::allocator::flow::{AllocatorSet, Code};
use crate::allocator::linkage::Linkage;
use crate::allocator::sites::{self, WINDOW};
use crate::allocator::symbols::{self, FunctionSymbol};
use crate::allocator::{Catalog, Discovery, Selection, discover};
use crate::process::Modules;

/// Maximum number of sites in one object.
const MAX_SITES: usize = 1024;

/// For any object, each probe is in code, at or near the entry of a function, with each address once; each
/// end of a call is a `ret`; and a second discovery finds the same.
pub(super) fn allocators(bytes: &[u8]) {
    check_functions(bytes);
    let Some(found) = discovered(bytes) else {
        return;
    };
    assert!(found.sites.len() <= MAX_SITES, "{} sites", found.sites.len());
    let elf = ElfView::parse(bytes).expect("it is a module");
    let mut probed = BTreeSet::new();
    for site in &found.sites {
        check_near(site.entry, site.svma);
        assert_eq!(offset_of_code(&elf, site.svma), Some(site.offset), "{site:?}");
        for &ret in site.rets.iter().flatten() {
            check_ret(&elf, bytes, ret);
        }
        assert!(probed.insert(site.svma), "{site:?} is another's, too");
    }
    let second = discovered(bytes).expect("the same file");
    assert_eq!(second.sites, found.sites);
    assert_eq!(second.problems.len(), found.problems.len());
}

/// Runs discovery over an object of this machine's architecture; `None` if it is not one.
fn discovered(bytes: &[u8]) -> Option<Discovery> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("room");
    let mut modules = Modules::new();
    modules.add_file(file.path()).ok()?;
    let selection = Selection {
        prefixes: vec!["je_".into()],
        ..Selection::default()
    };
    Some(discover(modules.iter(), &mut Catalog::new(selection)))
}

/// Checks each function of an object of any architecture by itself. Returns the number of functions.
pub(super) fn check_functions(bytes: &[u8]) -> usize {
    let catalog = Catalog::default();
    let Ok(elf) = ElfView::parse_any(bytes) else {
        return 0;
    };
    let Ok(symbols) = symbols::scan(bytes, |name| catalog.number(name)) else {
        return 0;
    };
    let linkage = Linkage::of(bytes);
    let code = Code::new(bytes, &elf, &linkage);
    let known = Named {
        symbols: &symbols,
        catalog: &catalog,
    };
    for symbol in &symbols {
        if let Some(function) = function_code(bytes, &elf, symbol.svma, symbol.size)
            && let Ok(choice) = sites::choose(&function, 0..3)
        {
            check_near(symbol.svma, choice.svma);
            offset_of_code(&elf, choice.svma).expect("it is code");
        }
        for ret in code.exits(symbol.svma, &known).unwrap_or_default() {
            check_ret(&elf, bytes, offset_of_code(&elf, ret).expect("it is code"));
        }
        let _ = (
            code.forwards(symbol.svma, &known),
            code.is_leaf(symbol.svma, &known),
        );
    }
    symbols.len()
}

/// Treats every known name as an allocator function.
struct Named<'a> {
    symbols: &'a [FunctionSymbol],
    catalog: &'a Catalog,
}

impl AllocatorSet for Named<'_> {
    fn is_function(&self, svma: Svma) -> bool {
        self.symbols.iter().any(|symbol| symbol.svma == svma)
    }

    fn is_import(&self, name: &[u8]) -> bool {
        self.catalog.number(name).is_some()
    }
}

fn check_near(entry: Svma, site: Svma) {
    assert!(site.offset_from(entry) < WINDOW, "{site:#x} for {entry:#x}");
}

fn check_ret(elf: &ElfView, bytes: &[u8], ret: FileOffset) {
    let from = usize::try_from(ret.get()).expect("within the file");
    let code = &bytes[from..];
    let returns = match elf.architecture() {
        Architecture::X86_64 => {
            let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
            decoder.decode().flow_control() == FlowControl::Return
        }
        // RET by any register (Arm ARM, C6.2).
        Architecture::Aarch64 => {
            let word = code.first_chunk().map(|word| u32::from_le_bytes(*word));
            word.is_some_and(|word| word & 0xffff_fc1f == 0xd65f_0000)
        }
    };
    assert!(returns, "no function ends at {ret:#x}");
}

/// File offset of an instruction in an executable segment.
fn offset_of_code(elf: &ElfView, svma: Svma) -> Option<FileOffset> {
    let mut code = elf.segments().iter().filter(|segment| segment.executable);
    let segment = code.find(|segment| segment.file_backed().contains(&svma))?;
    let into = svma.offset_from(segment.svma.start);
    Some(FileOffset::new(segment.offset.start.get() + into))
}
