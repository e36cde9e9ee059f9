//! The names of one code address. Plain data.
//!
//! `T` is a text: itself where it is looked up, its number in a [`Dictionary`](super::Dictionary).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TextKind;

/// The function that holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Symbol<T = Arc<str>> {
    /// Demangled name.
    pub name: T,
    /// Bytes from the function's first byte to the reported address, as a debugger prints it; `None` when
    /// only debug information names the function, which does not say where its symbol starts.
    pub offset: Option<u64>,
}

/// A function whose body the compiler copied into its caller at this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InlinedFrame<T = Arc<str>> {
    /// Demangled name.
    pub symbol: Option<T>,
    /// Source file of the code that runs in it.
    pub file: Option<T>,
    /// Line in that file.
    pub line: Option<u32>,
}

/// Everything known about one code address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Symbolized<T = Arc<str>> {
    /// The function in whose machine code the address lies, not one inlined into it.
    pub symbol: Option<Symbol<T>>,
    /// Source file of the call, in that function.
    pub file: Option<T>,
    /// Line of the call, in that file.
    pub line: Option<u32>,
    /// Functions inlined there, innermost first.
    pub inlined: Vec<InlinedFrame<T>>,
    /// Why something is missing.
    pub gap: Option<Gap>,
}

impl<T> Default for Symbolized<T> {
    fn default() -> Self {
        Self {
            symbol: None,
            file: None,
            line: None,
            inlined: Vec::new(),
            gap: None,
        }
    }
}

impl<T> Symbol<T> {
    /// The same function with another text for its name.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> Symbol<U> {
        Symbol {
            name: other(TextKind::Function, &self.name),
            offset: self.offset,
        }
    }
}

impl<T> InlinedFrame<T> {
    /// The same function with other texts.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> InlinedFrame<U> {
        InlinedFrame {
            symbol: self.symbol.as_ref().map(|text| other(TextKind::Function, text)),
            file: self.file.as_ref().map(|text| other(TextKind::Source, text)),
            line: self.line,
        }
    }
}

impl<T> Symbolized<T> {
    /// The same with other texts.
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
            gap: self.gap,
        }
    }
}

impl Symbolized {
    /// Bytes of memory that this takes, with its texts.
    pub fn memory(&self) -> usize {
        let mut bytes = size_of::<Self>();
        self.map(|_, text| bytes += text.len() + 2 * size_of::<usize>());
        bytes + self.inlined.len() * size_of::<InlinedFrame>()
    }
}

/// Why a function or line is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The address lies in no module.
    NoModule,
    /// The module is not an ELF file that can be read.
    Unreadable,
    /// The module has no symbols at all, and no debug file for it was found.
    NoSymbols,
    /// No symbol holds the address.
    NotInSymbol,
    /// The debug information is larger than may be held in memory.
    TooLarge,
    /// The debug information is malformed.
    Malformed,
    /// The compiler left the debug information in files of its own (`.dwo`, `.dwp`), and they were not found.
    NoSplitFile,
    /// What the debug information shares with that of other objects (dwz) was not found.
    NoSupplementaryFile,
}

impl Gap {
    /// The gap as a short clause.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoModule => "in no module",
            Self::Unreadable => "module is not a readable ELF file",
            Self::NoSymbols => "module has no symbols and no debug file",
            Self::NotInSymbol => "no symbol holds the address",
            Self::TooLarge => "debug information too large",
            Self::Malformed => "debug information malformed",
            Self::NoSplitFile => "no .dwo file or .dwp package found",
            Self::NoSupplementaryFile => "no supplementary debug file (dwz) found",
        }
    }
}
