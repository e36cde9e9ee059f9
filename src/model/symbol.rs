//! What is known about one code address. Plain data.

/// The function that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Demangled name.
    pub name: String,
    /// Bytes from the function's first byte to the reported address, as a debugger prints it; `None` when
    /// only debug information names the function, which does not say where its symbol starts.
    pub offset: Option<u64>,
}

/// A function whose body the compiler copied into its caller at this address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedFrame {
    /// Demangled name.
    pub symbol: Option<String>,
    /// Source file of the code that runs in it.
    pub file: Option<String>,
    /// Line in that file.
    pub line: Option<u32>,
}

/// Everything known about one code address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbolized {
    /// The function in whose machine code the address lies, not one inlined into it.
    pub symbol: Option<Symbol>,
    /// Source file of the call, in that function.
    pub file: Option<String>,
    /// Line of the call, in that file.
    pub line: Option<u32>,
    /// Functions inlined there, innermost first.
    pub inlined: Vec<InlinedFrame>,
    /// Why something is missing.
    pub gap: Option<Gap>,
}

impl Symbolized {
    /// How much memory this takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let length = |text: Option<&String>| text.map_or(0, String::len);
        let inlined = self.inlined.iter().map(|frame| {
            size_of::<InlinedFrame>() + length(frame.symbol.as_ref()) + length(frame.file.as_ref())
        });
        let symbol = self.symbol.as_ref().map(|symbol| &symbol.name);
        size_of::<Self>() + length(symbol) + length(self.file.as_ref()) + inlined.sum::<usize>()
    }
}

/// Why a function or line is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
