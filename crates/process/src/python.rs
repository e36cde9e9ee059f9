//! CPython in an ELF file: its version, where its variables and functions are, and how its structures are
//! laid out.
//!
//! Uses exported symbols only: extension modules need them, so that stripped files have them, too. Pure:
//! bytes of a file in, facts out. The file is untrusted. An unknown version is refused, and so is a build
//! whose types do not have the sizes of its version: offsets that are not certain would give wrong names.

mod described;
mod exports;
mod layout;
mod noted;
#[cfg(test)]
mod tests;
mod threads;

use std::fmt;
use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, Rela64};
use object::read::elf::Rela;
use thiserror::Error;
use unwind_tables::addr::{Svma, contains};
use unwind_tables::elf::ElfView;

use self::described::{DESCRIPTIONS, Description};
use self::exports::{Defined, bytes_at, exported};
pub use self::layout::{EntryMark, LAYOUTS, Layout, LineFormat, TextState};
pub use self::noted::Noted;
pub use self::threads::ThreadPlaces;
use super::dynamic::Dynamic;

const ENDIAN: LittleEndian = LittleEndian;
/// Maximum number of relocations that are read. libpython has 20 thousand.
const MAX_RELOCATIONS: usize = 1 << 22;
/// Maximum size of the function that runs frames, in bytes. It has 32 to 64 KiB, and some more if it is not
/// optimized.
const MAX_EVALUATOR: u64 = 1 << 20;

/// Types whose sizes are compared with the version's, with their names in Python.
const TYPES: [(Name, &[u8]); 4] = [
    (Name::CodeType, b"code\0"),
    (Name::FrameType, b"frame\0"),
    (Name::TextType, b"str\0"),
    (Name::BytesType, b"bytes\0"),
];
/// Offsets of fields of a `PyTypeObject` from its `ob_type`, which is the last field that every object has.
const TYPE_NAME: u64 = 16;
const TYPE_BASIC_SIZE: u64 = 24;
const TYPE_DEALLOC: u64 = 40;

/// CPython in an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonBuild {
    pub version: PythonVersion,
    /// `_PyRuntime`, whose fields are [`Layout::runtime`].
    pub runtime: Svma,
    /// Place where threads note their states.
    pub noted: Noted,
    /// `PyCode_Type`, the type of every code object.
    pub code_type: Svma,
    /// The function that ends every code object: `code_dealloc`.
    pub code_dealloc: Svma,
    /// `_PyEval_EvalFrameDefault`, without the parts that the compiler has placed elsewhere
    /// (`allocator::parts` finds them).
    pub evaluator: Range<Svma>,
    pub layout: Layout,
}

/// Version of CPython 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PythonVersion {
    pub major: u8,
    pub minor: u8,
    /// Third part; known from 3.11 on, where the file states it.
    pub micro: Option<u8>,
}

/// Reason why a CPython's frames cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    #[error("CPython {0} is not supported: this memleak reads frames of 3.9 to {last}", last = Newest)]
    Version(PythonVersion),
    #[error("CPython before 3.9 is not supported: memleak reads frames of 3.9 to {last}", last = Newest)]
    Older,
    #[error("CPython {0} is a prerelease: memleak reads frames of releases and release candidates only")]
    Prerelease(PythonVersion),
    #[error("CPython {version} has no usable `{name}`")]
    Missing {
        version: PythonVersion,
        name: &'static str,
    },
    #[error("CPython {version} is a custom build: `{field}` is not where releases have it")]
    Offset {
        version: PythonVersion,
        field: &'static str,
    },
    #[error("CPython {version} is a custom build: the size of `{name}` differs from releases")]
    TypeSize {
        version: PythonVersion,
        name: &'static str,
    },
}

impl Unsupported {
    /// Advice how to see its functions nevertheless.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Version(_) => Some(
                "a newer memleak may support it; until then, start Python with `-X perf` to see its \
                 functions",
            ),
            Self::Prerelease(version)
            | Self::Missing { version, .. }
            | Self::Offset { version, .. }
            | Self::TypeSize { version, .. } => version.remedy(),
            Self::Older => None,
        }
    }

    /// The version, from 3.9 on.
    pub fn version(self) -> Option<PythonVersion> {
        match self {
            Self::Older => None,
            Self::Version(version)
            | Self::Prerelease(version)
            | Self::Missing { version, .. }
            | Self::Offset { version, .. }
            | Self::TypeSize { version, .. } => Some(version),
        }
    }
}

/// The newest version whose frames are read.
struct Newest;

impl fmt::Display for Newest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newest = DESCRIPTIONS.iter().map(|description| description.minor).max();
        write!(f, "3.{}", newest.unwrap_or_default())
    }
}

impl PythonVersion {
    /// Advice how to see its functions where its frames are not read: from 3.12 on, functions can have native
    /// code of their own, under their names.
    pub fn remedy(self) -> Option<&'static str> {
        (self.minor >= 12).then_some("start Python with `-X perf` to see its functions")
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.micro.map_or(Ok(()), |micro| write!(f, ".{micro}"))
    }
}

/// Symbols that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    CodeType,
    FrameType,
    TextType,
    BytesType,
    Runtime,
    Evaluator,
    Version,
    /// `PyEval_EvalFrameEx`, which every CPython has.
    OldEvaluator,
    /// `PyFrame_GetCode`, since 3.9.
    Since9,
    /// `Py_Is`, since 3.10.
    Since10,
    /// `PyGILState_GetThisThreadState`.
    Noted,
}

const NAMES: [(Name, &str); 11] = [
    (Name::CodeType, "PyCode_Type"),
    (Name::FrameType, "PyFrame_Type"),
    (Name::TextType, "PyUnicode_Type"),
    (Name::BytesType, "PyBytes_Type"),
    (Name::Runtime, "_PyRuntime"),
    (Name::Evaluator, "_PyEval_EvalFrameDefault"),
    (Name::Version, "Py_Version"),
    (Name::OldEvaluator, "PyEval_EvalFrameEx"),
    (Name::Since9, "PyFrame_GetCode"),
    (Name::Since10, "Py_Is"),
    (Name::Noted, "PyGILState_GetThisThreadState"),
];

impl Name {
    fn text(self) -> &'static str {
        let found = NAMES.iter().find(|(name, _)| *name == self);
        found.map_or("", |(_, text)| text)
    }
}

impl PythonBuild {
    /// Reads an ELF file; `None` if there is no CPython in it.
    pub fn find(elf: &[u8]) -> Result<Option<Self>, Unsupported> {
        let Some(file) = PythonFile::open(elf) else {
            return Ok(None);
        };
        file.build().map(Some)
    }
}

/// Returns true if a file is a CPython with a lock (GIL), by its description of itself, which exists in
/// versions that contain mimalloc: 3.13 and newer. Such a CPython allocates Python's objects with pymalloc,
/// unless its environment asks for another allocator.
pub fn has_lock(elf: &[u8]) -> bool {
    let file = PythonFile::open(elf);
    file.is_some_and(|file| {
        let begin = file.runtime().and_then(|runtime| file.at(runtime.svma, 24));
        let said = begin.filter(|begin| begin.starts_with(described::COOKIE));
        let word = said.and_then(|said| said.get(described::FREE_THREADED..)?.first_chunk());
        word == Some(&0_u64.to_le_bytes())
    })
}

/// An ELF file with a CPython in it.
struct PythonFile<'a> {
    bytes: &'a [u8],
    view: ElfView<'a>,
    symbols: Symbols,
    relocations: &'a [Rela64<LittleEndian>],
}

/// The symbols of [`NAMES`], where the file defines them.
type Symbols = [Option<Defined>; NAMES.len()];

impl<'a> PythonFile<'a> {
    /// Opens a file; `None` if it does not define the function that runs Python's frames.
    fn open(bytes: &'a [u8]) -> Option<Self> {
        let view = ElfView::parse_any(bytes).ok()?;
        let symbols = exported(bytes, NAMES.map(|(_, name)| name))?;
        let file = Self {
            bytes,
            view,
            symbols,
            relocations: Dynamic::of(bytes)
                .and_then(|dynamic| relocations(&dynamic))
                .unwrap_or_default(),
        };
        file.symbol(Name::OldEvaluator)
            .or(file.symbol(Name::Evaluator))
            .map(|_| file)
    }

    fn build(&self) -> Result<PythonBuild, Unsupported> {
        let version = self.version()?;
        let missing = |name: Name| {
            let name = name.text();
            Unsupported::Missing { version, name }
        };
        let runtime = self.runtime().ok_or(missing(Name::Runtime))?;
        let layout = self.layout(version, runtime.svma)?;
        let key = layout.runtime.key;
        if key.is_some_and(|key| u64::from(key) + 4 > runtime.bytes) {
            return Err(missing(Name::Runtime));
        }
        for ((name, python_name), size) in TYPES.into_iter().zip(layout.basic_sizes) {
            let kind = self.symbol(name).ok_or(missing(name))?;
            let own_type = kind.svma.wrapping_add(layout.object_type.into());
            if !self.is_type(own_type, python_name, size) {
                let name = name.text();
                return Err(Unsupported::TypeSize { version, name });
            }
        }
        let code_type = self.symbol(Name::CodeType).ok_or(missing(Name::CodeType))?.svma;
        let own_type = code_type.wrapping_add(layout.object_type.into());
        let dealloc = self.pointer(own_type.wrapping_add(TYPE_DEALLOC));
        Ok(PythonBuild {
            version,
            runtime: runtime.svma,
            noted: match key {
                Some(_) => Noted::Key,
                None => self.noted().ok_or(missing(Name::Noted))?,
            },
            code_type,
            code_dealloc: dealloc
                .filter(|&dealloc| self.is_code(dealloc, 1))
                .ok_or(missing(Name::CodeType))?,
            evaluator: self.evaluator().ok_or(missing(Name::Evaluator))?,
            layout,
        })
    }

    /// Determines the layout by CPython's description of itself, or by the table of older versions.
    fn layout(&self, version: PythonVersion, runtime: Svma) -> Result<Layout, Unsupported> {
        let is_3 = version.major == 3;
        let described = DESCRIPTIONS
            .iter()
            .find(|known| is_3 && known.minor == version.minor);
        if let Some(description) = described {
            return self
                .described(version, description, runtime)
                .map_err(|field| Unsupported::Offset { version, field });
        }
        let known = LAYOUTS.iter().find(|known| is_3 && known.minor == version.minor);
        let known = known.ok_or(Unsupported::Version(version))?;
        Ok(known.for_machine(self.view.architecture()))
    }

    /// Reads CPython's description of itself. The error is the name of the part that is not usable.
    fn described(
        &self,
        version: PythonVersion,
        description: &Description,
        runtime: Svma,
    ) -> Result<Layout, &'static str> {
        let said = self.at(runtime, description.bytes());
        let said = said.filter(|said| said.starts_with(described::COOKIE));
        let said = said.ok_or("_PyRuntime.debug_offsets")?;
        let of = said.get(described::VERSION..).and_then(<[u8]>::first_chunk::<4>);
        match of {
            Some(&[_, micro, minor, major])
                if (major, minor, Some(micro)) == (version.major, version.minor, version.micro) =>
            {
                description.layout(said)
            }
            Some(_) | None => Err("_Py_DebugOffsets.version"),
        }
    }

    /// Determines the version: since 3.11 by the constant that states it, before by functions that came with
    /// versions.
    fn version(&self) -> Result<PythonVersion, Unsupported> {
        /// `PY_RELEASE_LEVEL_GAMMA`: a candidate, which is laid out as the release.
        const CANDIDATE: u8 = 0xc;
        let of_minor = |minor| PythonVersion {
            major: 3,
            minor,
            micro: None,
        };
        let stated = self
            .symbol(Name::Version)
            .and_then(|constant| self.at(constant.svma, 4));
        if let Some(&[level, micro, minor, major]) = stated.and_then(<[u8]>::first_chunk) {
            let micro = Some(micro);
            let version = PythonVersion { major, minor, micro };
            let is_release = level >> 4 >= CANDIDATE;
            return is_release
                .then_some(version)
                .ok_or(Unsupported::Prerelease(version));
        }
        match [Name::Since9, Name::Since10].map(|name| self.symbol(name).is_some()) {
            [_, true] => Ok(of_minor(10)),
            [true, false] => Ok(of_minor(9)),
            [false, false] => Err(Unsupported::Older),
        }
    }

    /// Finds `_PyRuntime`, if it is in writable memory.
    fn runtime(&self) -> Option<Defined> {
        let found = self.symbol(Name::Runtime).filter(|found| found.bytes > 0)?;
        let end = found.svma.checked_add(found.bytes)?;
        let mut segments = self.view.segments().iter();
        let holds = segments
            .any(|segment| segment.writable && segment.svma.start <= found.svma && end <= segment.svma.end);
        holds.then_some(found)
    }

    /// Finds the place where threads note their states, by the function that returns a thread's state.
    fn noted(&self) -> Option<Noted> {
        let function = self.symbol(Name::Noted)?;
        let code = self.at(function.svma, function.bytes.min(noted::MAX_CODE))?;
        noted::by_code(self.view.architecture(), code, function.svma, |slot| {
            self.word_in_place(slot)
        })
        .filter(|_| self.is_code(function.svma, 1))
    }

    /// Returns true if the type whose `ob_type` is at an address has this name, and this size if it is known.
    fn is_type(&self, at: Svma, name: &[u8], size: Option<u32>) -> bool {
        let named = self.pointer(at.wrapping_add(TYPE_NAME));
        let named = named.and_then(|named| self.at(named, name.len() as u64));
        let has_size = |size: u32| self.word(at.wrapping_add(TYPE_BASIC_SIZE)) == Some(size.into());
        named == Some(name) && size.is_none_or(has_size)
    }

    fn evaluator(&self) -> Option<Range<Svma>> {
        let found = self.symbol(Name::Evaluator)?;
        let is_usable = (1..=MAX_EVALUATOR).contains(&found.bytes) && self.is_code(found.svma, found.bytes);
        is_usable.then(|| found.svma..found.svma.wrapping_add(found.bytes))
    }

    /// Returns true if these bytes are code.
    fn is_code(&self, at: Svma, bytes: u64) -> bool {
        let mut code = self.view.segments().iter().filter(|segment| segment.executable);
        let last = at.checked_add(bytes - 1);
        last.is_some_and(|last| {
            code.any(|segment| {
                let code = segment.file_backed();
                contains(&code, at) && contains(&code, last)
            })
        })
    }

    fn symbol(&self, name: Name) -> Option<Defined> {
        let at = NAMES.iter().position(|(known, _)| *known == name)?;
        self.symbols[at]
    }

    /// The address that the loader stores at an address.
    fn pointer(&self, at: Svma) -> Option<Svma> {
        let mut relocations = self.relocations.iter().take(MAX_RELOCATIONS);
        let found = relocations.find(|relocation| relocation.r_offset(ENDIAN) == at.get());
        match found {
            Some(relocation) => {
                let kind = relocation.r_type(ENDIAN, false);
                let is_own = [elf::R_X86_64_RELATIVE, elf::R_AARCH64_RELATIVE].contains(&kind);
                let addend = relocation.r_addend(ENDIAN).cast_unsigned();
                is_own.then_some(Svma::new(addend))
            }
            // The address is in the file for a program at fixed addresses, and where relocations are packed
            // (`DT_RELR`).
            None => self.word(at).map(Svma::new),
        }
    }

    /// Reads a word; `None` if the loader changes it.
    fn word_in_place(&self, at: Svma) -> Option<u64> {
        let mut relocations = self.relocations.iter().take(MAX_RELOCATIONS);
        let is_changed = relocations.any(|relocation| relocation.r_offset(ENDIAN) == at.get());
        self.word(at).filter(|_| !is_changed)
    }

    fn word(&self, at: Svma) -> Option<u64> {
        let bytes = self.at(at, 8)?;
        Some(u64::from_le_bytes(*bytes.first_chunk()?))
    }

    /// Bytes that are loaded at an address from the file.
    fn at(&self, at: Svma, bytes: u64) -> Option<&'a [u8]> {
        bytes_at(self.bytes, &self.view, at, bytes)
    }
}

fn relocations<'a>(dynamic: &Dynamic<'a>) -> Option<&'a [Rela64<LittleEndian>]> {
    let bytes = usize::try_from(dynamic.value(elf::DT_RELASZ)?).ok()?;
    let count = bytes / size_of::<Rela64<LittleEndian>>();
    let (found, _) = object::pod::slice_from_bytes(dynamic.table(elf::DT_RELA)?, count).ok()?;
    Some(found)
}
