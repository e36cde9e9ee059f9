//! Kernel symbols from `/proc/kallsyms`: the kernel's own, its modules', and those of generated code.
//!
//! The list has no sizes: a symbol extends to the next one, and the last of a module at most
//! [`LAST_SYMBOL_BYTES`].

use std::fs;
use std::io;

use thiserror::Error;
use unwind_tables::addr::Avma;

use super::demangle::demangle;

/// Maximum length of the last symbol of a module in bytes.
const LAST_SYMBOL_BYTES: u64 = 16 << 10;
/// Module name for code that belongs to no module.
const KERNEL: &str = "[kernel]";

/// Reason why the symbols are not available.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KallsymsError {
    #[error(
        "cannot read /proc/kallsyms: the kernel must be built with CONFIG_KALLSYMS, and /proc be mounted"
    )]
    Unreadable(#[from] io::Error),
    #[error(
        "the kernel hides its addresses in /proc/kallsyms: run as root or with CAP_SYSLOG, and with \
         `sysctl kernel.kptr_restrict` at 0 or 1"
    )]
    Hidden,
}

/// Code symbols, sorted by address.
#[derive(Debug, Default)]
pub struct Kallsyms {
    symbols: Vec<Entry>,
    /// Names of modules, in brackets; the first is [`KERNEL`].
    modules: Vec<Module>,
}

#[derive(Debug)]
struct Module {
    name: String,
    /// Lowest address of its symbols.
    start: u64,
}

#[derive(Debug)]
struct Entry {
    start: u64,
    module: usize,
    name: Box<str>,
}

/// The function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    /// Name as listed, not demangled.
    pub name: &'a str,
    pub start: Avma,
    /// Number for [`Kallsyms::module_at`].
    pub module: usize,
}

impl Kallsyms {
    /// Reads the list.
    ///
    /// # Errors
    ///
    /// The list cannot be read, or the kernel hides its addresses.
    pub fn read() -> Result<Self, KallsymsError> {
        let listed = Self::parse(&fs::read("/proc/kallsyms")?);
        match listed.symbols.is_empty() {
            true => Err(KallsymsError::Hidden),
            false => Ok(listed),
        }
    }

    /// Keeps code symbols with an address. Malformed lines are skipped.
    fn parse(text: &[u8]) -> Self {
        let mut listed = Self::default();
        listed.module(KERNEL);
        for line in text.split(|&byte| byte == b'\n') {
            let Some((start, name, module)) = parse_line(line) else {
                continue;
            };
            let module = listed.module(module.unwrap_or(KERNEL));
            let name = name.into();
            listed.symbols.push(Entry { start, module, name });
        }
        // Of several names for an address, choose the first in order, so that the choice is stable.
        listed
            .symbols
            .sort_unstable_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
        listed.symbols.dedup_by_key(|symbol| symbol.start);
        for symbol in listed.symbols.iter().rev() {
            if let Some(module) = listed.modules.get_mut(symbol.module) {
                module.start = symbol.start;
            }
        }
        listed
    }

    /// Number of the module with this name, added if new. Symbols of a module are mostly adjacent, so the
    /// search starts at the last one.
    fn module(&mut self, name: &str) -> usize {
        let known = self.modules.iter().rposition(|module| module.name == name);
        known.unwrap_or_else(|| {
            self.modules.push(Module {
                name: name.to_owned(),
                start: 0,
            });
            self.modules.len() - 1
        })
    }

    /// The function that contains `address`.
    pub fn find(&self, address: Avma) -> Option<KernelSymbol<'_>> {
        let address = address.get();
        let behind = self.symbols.partition_point(|symbol| symbol.start <= address);
        let symbol = self.symbols.get(behind.checked_sub(1)?)?;
        let next = self
            .symbols
            .get(behind)
            .filter(|next| next.module == symbol.module);
        if next.is_none() && address - symbol.start >= LAST_SYMBOL_BYTES {
            return None;
        }
        Some(KernelSymbol {
            name: &symbol.name,
            start: Avma::new(symbol.start),
            module: symbol.module,
        })
    }

    /// Name of a module, in brackets, and its lowest address.
    pub fn module_at(&self, number: usize) -> Option<(&str, Avma)> {
        let module = self.modules.get(number)?;
        Some((&module.name, Avma::new(module.start)))
    }

    /// Address range of the interrupt entry code; `None` if it contains other symbols.
    pub fn interrupt_entries(&self) -> Option<(Avma, Avma)> {
        let first = self
            .symbols
            .iter()
            .position(|symbol| is_interrupt_entry(&symbol.name))?;
        let all = self
            .symbols
            .iter()
            .filter(|symbol| is_interrupt_entry(&symbol.name));
        let behind = first + all.count();
        let block = self.symbols.get(first..behind)?;
        let end = self.symbols.get(behind)?.start;
        let is_whole = block.iter().all(|symbol| is_interrupt_entry(&symbol.name));
        is_whole.then_some((Avma::new(block.first()?.start), Avma::new(end)))
    }
}

/// Demangles a function's name.
pub fn readable(name: &str) -> String {
    demangle(name.as_bytes())
}

/// True for an interrupt entry: the frames above it on the stack were interrupted.
fn is_interrupt_entry(name: &str) -> bool {
    name.starts_with("asm_sysvec_") || ["asm_common_interrupt", "asm_spurious_interrupt"].contains(&name)
}

/// Parses a line `ADDRESS TYPE NAME` or `ADDRESS TYPE NAME\t[MODULE]` of a code symbol.
fn parse_line(line: &[u8]) -> Option<(u64, &str, Option<&str>)> {
    let line = str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let start = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    let name = words.next()?;
    (is_code && start != 0).then_some((start, name, words.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &[u8] = b"0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _text\n\
        ffffffff81000040 t asm_exc_page_fault\n\
        ffffffff81000080 T asm_common_interrupt\n\
        ffffffff810000c0 T asm_sysvec_thermal\n\
        ffffffff81000100 T entry\n\
        ffffffff81000100 T also_entry\n\
        ffffffff82000000 D data\n\
        nonsense\n\
        ffffffffc0000010 t first\t[some_module]\n\
        ffffffffc0000050 T second\t[some_module]\n\
        ffffffffc0100000 t bpf_prog_x\t[bpf]\n";

    fn found(listed: &Kallsyms, address: u64) -> Option<(String, u64, String)> {
        let symbol = listed.find(Avma::new(address))?;
        let (module, _) = listed.module_at(symbol.module)?;
        Some((symbol.name.to_owned(), symbol.start.get(), module.to_owned()))
    }

    /// An address belongs to the function before it and to its module; addresses far behind a module belong
    /// to none.
    #[test]
    fn addresses_are_in_functions() {
        let listed = Kallsyms::parse(LISTED);
        let expect = |name: &str, start, module: &str| Some((name.to_owned(), start, module.to_owned()));
        for (address, expected) in [
            (0xffff_ffff_80ff_ffff, None),
            (
                0xffff_ffff_8100_0048,
                expect("asm_exc_page_fault", 0xffff_ffff_8100_0040, "[kernel]"),
            ),
            (
                0xffff_ffff_8100_0120,
                expect("also_entry", 0xffff_ffff_8100_0100, "[kernel]"),
            ),
            (0xffff_ffff_8200_0010, None),
            (
                0xffff_ffff_c000_0012,
                expect("first", 0xffff_ffff_c000_0010, "[some_module]"),
            ),
            (
                0xffff_ffff_c000_1000,
                expect("second", 0xffff_ffff_c000_0050, "[some_module]"),
            ),
            (0xffff_ffff_c000_8000, None),
            (
                0xffff_ffff_c010_0001,
                expect("bpf_prog_x", 0xffff_ffff_c010_0000, "[bpf]"),
            ),
        ] {
            assert_eq!(found(&listed, address), expected, "{address:#x}");
        }
        let (_, start) = listed.module_at(1).expect("the second module");
        assert_eq!(start.get(), 0xffff_ffff_c000_0010);
    }

    /// Interrupt entries form one range, or none is returned.
    #[test]
    fn interrupt_entries_lie_together() {
        let entries = Kallsyms::parse(LISTED).interrupt_entries();
        let (start, end) = entries.expect("they do");
        assert_eq!(
            (start.get(), end.get()),
            (0xffff_ffff_8100_0080, 0xffff_ffff_8100_0100)
        );
        let apart = b"10 T asm_common_interrupt\n20 T between\n30 T asm_sysvec_x\n40 T end\n";
        assert!(Kallsyms::parse(apart).interrupt_entries().is_none());
        assert!(Kallsyms::parse(b"").interrupt_entries().is_none());
    }

    /// A list without addresses is rejected.
    #[test]
    fn hidden_addresses_are_none() {
        let listed = Kallsyms::parse(b"0000000000000000 T _text\n0000000000000000 t x\t[y]\n");
        assert!(listed.symbols.is_empty());
    }
}
