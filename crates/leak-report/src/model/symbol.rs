//! Names of one code address. Plain data.
//!
//! `T` is a text, or its id in a [`Dictionary`](super::Dictionary).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TextKind;

/// Function that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Symbol<T = Arc<str>> {
    /// Demangled name.
    pub name: T,
    /// Bytes from the function's first byte to the reported address, as a debugger prints it; `None` if only
    /// debug information names the function, which does not state where its symbol starts.
    pub offset: Option<u64>,
}

/// Function whose body the compiler copied into its caller at this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InlinedFrame<T = Arc<str>> {
    /// Demangled name.
    pub symbol: Option<T>,
    /// Source file of the code that runs in it.
    pub file: Option<T>,
    /// Line in that file.
    pub line: Option<u32>,
}

/// Maximum number of names of folded functions that are kept of a frame.
pub const MAX_FOLDED: usize = 64;

/// Names and source lines of one code address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Symbolized<T = Arc<str>> {
    /// Function whose machine code contains the address, not one inlined into it.
    pub symbol: Option<Symbol<T>>,
    /// Source file of the call in `symbol`.
    pub file: Option<T>,
    /// Line of the call in `file`.
    pub line: Option<u32>,
    /// Functions inlined at the address, innermost first.
    pub inlined: Vec<InlinedFrame<T>>,
    /// Names of other functions with the same code, any of which may be on the stack instead of `symbol`:
    /// linkers and compilers fold identical functions into one. At most [`MAX_FOLDED`].
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub folded: Vec<T>,
    /// Reason why a name or line is missing.
    pub gap: Option<Gap>,
}

impl<T> Default for Symbolized<T> {
    fn default() -> Self {
        Self {
            symbol: None,
            file: None,
            line: None,
            inlined: Vec::new(),
            folded: Vec::new(),
            gap: None,
        }
    }
}

impl<T> Symbol<T> {
    /// Converts the text of the name.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> Symbol<U> {
        Symbol {
            name: other(TextKind::Function, &self.name),
            offset: self.offset,
        }
    }
}

impl<T> InlinedFrame<T> {
    /// Converts the texts of the name and file.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> InlinedFrame<U> {
        InlinedFrame {
            symbol: self.symbol.as_ref().map(|text| other(TextKind::Function, text)),
            file: self.file.as_ref().map(|text| other(TextKind::Source, text)),
            line: self.line,
        }
    }
}

impl<T> Symbolized<T> {
    /// Converts all texts.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> Symbolized<U> {
        Symbolized {
            symbol: self.symbol.as_ref().map(|symbol| symbol.map(&mut other)),
            file: self.file.as_ref().map(|text| other(TextKind::Source, text)),
            line: self.line,
            inlined: self
                .inlined
                .iter()
                .map(|inlined| inlined.map(&mut other))
                .collect(),
            folded: self
                .folded
                .iter()
                .map(|name| other(TextKind::Function, name))
                .collect(),
            gap: self.gap,
        }
    }
}

impl Symbolized {
    /// Memory that it takes in bytes, including its texts.
    pub fn memory(&self) -> usize {
        let mut bytes = size_of::<Self>();
        self.map(|_, text| bytes += text.len() + 2 * size_of::<usize>());
        bytes + self.inlined.len() * size_of::<InlinedFrame>()
    }
}

/// Reason why a function or line is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The address is in no module.
    NoModule,
    /// The module is not a readable ELF file.
    Unreadable,
    /// The module has no symbols, and no debug file was found for it.
    NoSymbols,
    /// No symbol covers the address.
    NotInSymbol,
    /// The debug information is larger than the memory limit.
    TooLarge,
    /// The debug information is malformed.
    Malformed,
    /// The compiler put the debug information into separate files (`.dwo`, `.dwp`), which were not found.
    NoSplitFile,
    /// The debug information that is shared between objects (dwz) was not found.
    NoSupplementaryFile,
}

impl Gap {
    /// Short clause for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoModule => "in no module",
            Self::Unreadable => "module is not a readable ELF file",
            Self::NoSymbols => "module has no symbols and no debug file",
            Self::NotInSymbol => "no symbol covers the address",
            Self::TooLarge => "debug information too large",
            Self::Malformed => "debug information malformed",
            Self::NoSplitFile => "no .dwo file or .dwp package found",
            Self::NoSupplementaryFile => "no supplementary debug file (dwz) found",
        }
    }
}
