//! What reports refer to by number, while they are recorded: each thing gets its number when it is first seen.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::sync::Arc;

use super::chunk::TooLarge;
use super::schema::{self, MOST_DEFINITIONS, Number, Text};
use crate::model::{CodeSegment, Frame, Location, ModuleFacts, Stack};
use crate::model::{Gap, InlinedFrame, Symbol, Symbolized};

/// About how many bytes of definitions are put into one chunk, which stay far below what a chunk can hold.
const CHUNK_BYTES: usize = 4 << 20;
/// The longest text, in bytes; no real name comes near.
const MAX_TEXT: usize = 1 << 20;

/// Things of one sort by number.
struct Numbered<T> {
    numbers: HashMap<T, Number>,
    /// Those that are not written yet.
    new: Vec<T>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            new: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn number(&mut self, thing: T) -> Number {
        match self.numbers.get(&thing) {
            Some(&number) => number,
            None => self.add(thing),
        }
    }

    fn add(&mut self, thing: T) -> Number {
        // There are too many long before (`take_new`).
        let number = Number::try_from(self.numbers.len()).unwrap_or(Number::MAX);
        self.numbers.insert(thing.clone(), number);
        self.new.push(thing);
        number
    }
}

/// All that was defined so far.
#[derive(Default)]
pub(super) struct Definer {
    texts: Numbered<OsString>,
    modules: Numbered<schema::Module>,
    names: Numbered<schema::Names>,
    frames: Numbered<schema::Frame>,
    paths: Numbered<schema::Path>,
    sites: Numbered<schema::Site>,
    known: Known,
}

/// Numbers of what a report's parts share, by where it lies: valid as long as that report is.
#[derive(Default)]
struct Known {
    modules: HashMap<*const ModuleFacts, Number>,
    names: HashMap<*const Symbolized, Number>,
}

impl Definer {
    /// Begins with another report.
    pub(super) fn begin_report(&mut self) {
        self.known = Known::default();
    }

    pub(super) fn text(&mut self, text: impl AsRef<OsStr>) -> Number {
        let text = cut(text.as_ref());
        match self.texts.numbers.get(text) {
            Some(&number) => number,
            None => self.texts.add(text.to_owned()),
        }
    }

    pub(super) fn module(&mut self, module: &Arc<ModuleFacts>) -> Number {
        let at = Arc::as_ptr(module);
        if let Some(&number) = self.known.modules.get(&at) {
            return number;
        }
        let ModuleFacts {
            path,
            build_id,
            code,
            table,
        } = module.as_ref();
        let segment = |CodeSegment { svma, offset }: &CodeSegment| schema::CodeSegment {
            start: svma.start.get(),
            end: svma.end.get(),
            offset: offset.get(),
        };
        let module = schema::Module {
            code: code.iter().map(segment).collect(),
            path: self.text(path),
            build_id: build_id.as_ref().map(|build_id| self.text(build_id)),
            table: table.map(Into::into),
        };
        let number = self.modules.number(module);
        self.known.modules.insert(at, number);
        number
    }

    fn names(&mut self, names: &Arc<Symbolized>) -> Number {
        let at = Arc::as_ptr(names);
        if let Some(&number) = self.known.names.get(&at) {
            return number;
        }
        let Symbolized {
            symbol,
            file,
            line,
            inlined,
            gap,
        } = names.as_ref();
        let (symbol, offset) = match symbol {
            None => (None, None),
            Some(Symbol { name, offset }) => (Some(self.text(name)), *offset),
        };
        let names = schema::Names {
            symbol,
            offset,
            file: file.as_ref().map(|file| self.text(file)),
            line: *line,
            inlined: inlined.iter().map(|inlined| self.inlined(inlined)).collect(),
            gap: gap.map(|gap| gap_word(gap).into()),
        };
        let number = self.names.number(names);
        self.known.names.insert(at, number);
        number
    }

    fn inlined(&mut self, inlined: &InlinedFrame) -> schema::Inlined {
        let InlinedFrame { symbol, file, line } = inlined;
        schema::Inlined {
            symbol: symbol.as_ref().map(|symbol| self.text(symbol)),
            file: file.as_ref().map(|file| self.text(file)),
            line: *line,
        }
    }

    fn location(&mut self, location: &Location) -> schema::Location {
        let Location { pc, place } = location;
        schema::Location {
            pc: pc.get(),
            module: place.as_ref().map(|(module, _)| self.module(module)),
            address: place.as_ref().map_or(0, |(_, svma)| svma.get()),
        }
    }

    fn frame(&mut self, frame: &Frame) -> Number {
        let Frame {
            at,
            exact,
            found_by,
            names,
        } = frame;
        let frame = schema::Frame {
            at: self.location(at),
            exact: *exact,
            found_by: found_by.name().into(),
            names: self.names(names),
        };
        self.frames.number(frame)
    }

    /// The site of a stack: all of it that stays the same from report to report. The rest is the report's.
    pub(super) fn site(&mut self, stack: &Stack) -> Number {
        let mut path = None;
        for frame in stack.frames.iter().rev() {
            let frame = self.frame(frame);
            path = Some(self.paths.number(schema::Path(path, frame)));
        }
        let site = schema::Site {
            pid: stack.pid,
            instance: stack.instance,
            allocator: self.text(stack.allocator.as_ref()),
            kind: stack.kind.map(|kind| kind.name().into()),
            path,
            end: stack.end.name().into(),
            end_at: stack.end_at.as_ref().map(|at| self.location(at)),
        };
        self.sites.number(site)
    }

    /// What was defined since the last call, in pieces of which each fits into a chunk.
    pub(super) fn take_new(&mut self) -> Result<Vec<schema::Definitions>, TooLarge> {
        let counts = [
            self.texts.numbers.len(),
            self.modules.numbers.len(),
            self.names.numbers.len(),
            self.frames.numbers.len(),
            self.paths.numbers.len(),
            self.sites.numbers.len(),
        ];
        if counts.into_iter().any(|count| count > MOST_DEFINITIONS) {
            return Err(TooLarge);
        }
        let mut pieces = Pieces::default();
        for text in self.texts.new.drain(..) {
            let bytes = text.len() + 8;
            pieces.with_room_for(bytes).texts.0.push(Text(text));
        }
        for module in self.modules.new.drain(..) {
            pieces.with_room_for(128).modules.0.push(module);
        }
        for names in self.names.new.drain(..) {
            let bytes = 64 + 64 * names.inlined.0.len();
            pieces.with_room_for(bytes).names.0.push(names);
        }
        for frame in self.frames.new.drain(..) {
            pieces.with_room_for(64).frames.0.push(frame);
        }
        for path in self.paths.new.drain(..) {
            pieces.with_room_for(16).paths.0.push(path);
        }
        for site in self.sites.new.drain(..) {
            pieces.with_room_for(128).sites.0.push(site);
        }
        Ok(pieces.all)
    }
}

/// Definitions in pieces of bounded size.
#[derive(Default)]
struct Pieces {
    all: Vec<schema::Definitions>,
    /// About the size of the last one.
    bytes: usize,
}

impl Pieces {
    fn with_room_for(&mut self, bytes: usize) -> &mut schema::Definitions {
        self.bytes += bytes;
        if self.all.is_empty() || self.bytes > CHUNK_BYTES {
            self.bytes = bytes;
            self.all.push(schema::Definitions::default());
        }
        let last = self.all.len() - 1;
        &mut self.all[last]
    }
}

fn cut(text: &OsStr) -> &OsStr {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_bytes();
    OsStr::from_bytes(bytes.get(..MAX_TEXT).unwrap_or(bytes))
}

/// Every gap.
pub(super) const GAPS: [Gap; 8] = [
    Gap::NoModule,
    Gap::Unreadable,
    Gap::NoSymbols,
    Gap::NotInSymbol,
    Gap::TooLarge,
    Gap::Malformed,
    Gap::NoSplitFile,
    Gap::NoSupplementaryFile,
];

/// The word for why a name is missing.
pub(super) fn gap_word(gap: Gap) -> &'static str {
    match gap {
        Gap::NoModule => "no_module",
        Gap::Unreadable => "unreadable",
        Gap::NoSymbols => "no_symbols",
        Gap::NotInSymbol => "not_in_symbol",
        Gap::TooLarge => "too_large",
        Gap::Malformed => "malformed",
        Gap::NoSplitFile => "no_split_file",
        Gap::NoSupplementaryFile => "no_supplementary_file",
    }
}
