//! What reports refer to by number, while they are read.
//!
//! A recording may be anybody's, so everything has a bound: how many there may be of each sort, and what they take in
//! memory, where a long name can be referred to by many. The bounds lie far above what can be recorded.

use std::ffi::OsStr;
use std::sync::Arc;

use unwind_tables::addr::{Avma, FileOffset, Svma};
use unwind_tables::walk::{End, FoundBy};

use super::define::{GAPS, gap_word};
use super::schema::{self, MOST_DEFINITIONS, Number};
use crate::model::Name;
use crate::model::{CodeSegment, Frame, Location, ModuleFacts};
use crate::model::{Gap, InlinedFrame, RegionKind, Symbol, Symbolized};

/// Bytes of all texts together; and of all copies of them in names and modules.
const MOST_TEXT_BYTES: usize = 512 << 20;
/// Frames of one stack. The kernel has its own limit, which can be set; walks have 512.
const MOST_DEPTH: u32 = 1 << 16;

/// What is wrong with a part of a recording whose checksum is right: it was not made by this program, or by a newer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong(pub(super) String);

fn wrong<T>(what: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong(what.into()))
}

/// Something of which only so much may be taken.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    what: &'static str,
}

impl Budget {
    pub(super) fn new(all: usize, what: &'static str) -> Self {
        Self { left: all, what }
    }

    pub(super) fn take(&mut self, amount: usize) -> Result<(), Wrong> {
        match self.left.checked_sub(amount) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => wrong(format!("more {} than can be recorded", self.what)),
        }
    }
}

/// A frame and those that called it.
#[derive(Clone, Copy, Debug)]
struct Path {
    caller: Option<Number>,
    frame: Number,
    depth: u32,
}

/// An allocator function called by a stack.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) pid: u32,
    pub(super) instance: u32,
    pub(super) allocator: Name,
    pub(super) kind: Option<RegionKind>,
    path: Option<Number>,
    pub(super) end: End,
    pub(super) end_at: Option<Location>,
}

/// All that was defined.
#[derive(Debug)]
pub(super) struct Tables {
    texts: Vec<schema::Text>,
    modules: Vec<Arc<ModuleFacts>>,
    names: Vec<Arc<Symbolized>>,
    frames: Vec<Frame>,
    paths: Vec<Path>,
    sites: Vec<Site>,
    text_bytes: Budget,
    copied_bytes: Budget,
}

impl Default for Tables {
    fn default() -> Self {
        Self::with_room_for(MOST_TEXT_BYTES)
    }
}

/// What a number stands for.
fn get<'a, T>(things: &'a [T], number: Number, what: &str) -> Result<&'a T, Wrong> {
    match things.get(number as usize) {
        Some(thing) => Ok(thing),
        None => wrong(format!("{what} number {number} is not defined")),
    }
}

fn push<T>(things: &mut Vec<T>, thing: T, what: &str) -> Result<(), Wrong> {
    if things.len() >= MOST_DEFINITIONS {
        return wrong(format!("more than {MOST_DEFINITIONS} definitions of a {what}"));
    }
    things.push(thing);
    Ok(())
}

impl Tables {
    /// Without definitions; texts may have so many bytes in all, and so many more where names are made of them.
    pub(super) fn with_room_for(text_bytes: usize) -> Self {
        Self {
            texts: Vec::new(),
            modules: Vec::new(),
            names: Vec::new(),
            frames: Vec::new(),
            paths: Vec::new(),
            sites: Vec::new(),
            text_bytes: Budget::new(text_bytes, "text"),
            copied_bytes: Budget::new(text_bytes, "names"),
        }
    }

    /// Adds what a chunk defines.
    pub(super) fn add(&mut self, definitions: schema::Definitions) -> Result<(), Wrong> {
        let schema::Definitions {
            texts,
            modules,
            names,
            frames,
            paths,
            sites,
        } = definitions;
        for text in texts.0 {
            self.text_bytes.take(text.0.len())?;
            push(&mut self.texts, text, "text")?;
        }
        for module in &modules.0 {
            let module = Arc::new(self.read_module(module)?);
            push(&mut self.modules, module, "module")?;
        }
        for names in &names.0 {
            let names = Arc::new(self.read_names(names)?);
            push(&mut self.names, names, "name")?;
        }
        for frame in &frames.0 {
            let frame = self.read_frame(frame)?;
            push(&mut self.frames, frame, "frame")?;
        }
        for &path in &paths.0 {
            let path = self.read_path(path)?;
            push(&mut self.paths, path, "path")?;
        }
        for site in &sites.0 {
            let site = self.read_site(site)?;
            push(&mut self.sites, site, "site")?;
        }
        Ok(())
    }

    /// A text as it is.
    pub(super) fn text(&self, number: Number) -> Result<&OsStr, Wrong> {
        Ok(&get(&self.texts, number, "text")?.0)
    }

    /// A text that everybody else takes for UTF-8.
    fn copied(&mut self, number: Number) -> Result<String, Wrong> {
        let text = self.text(number)?.to_string_lossy().into_owned();
        self.copied_bytes.take(text.len())?;
        Ok(text)
    }

    fn copied_if(&mut self, number: Option<Number>) -> Result<Option<String>, Wrong> {
        number.map(|number| self.copied(number)).transpose()
    }

    pub(super) fn modules(&self) -> &[Arc<ModuleFacts>] {
        &self.modules
    }

    pub(super) fn module(&self, number: Number) -> Result<Arc<ModuleFacts>, Wrong> {
        get(&self.modules, number, "module").cloned()
    }

    pub(super) fn site(&self, number: Number) -> Result<&Site, Wrong> {
        get(&self.sites, number, "site")
    }

    /// The frames of a site, innermost first; they are taken from `budget`.
    pub(super) fn frames(&self, site: &Site, budget: &mut Budget) -> Result<Vec<Frame>, Wrong> {
        let mut next = site.path;
        let depth = match next {
            Some(path) => get(&self.paths, path, "path")?.depth as usize,
            None => 0,
        };
        budget.take(depth)?;
        let mut frames = Vec::with_capacity(depth);
        while let Some(number) = next {
            let path = get(&self.paths, number, "path")?;
            frames.push(get(&self.frames, path.frame, "frame")?.clone());
            next = path.caller;
        }
        Ok(frames)
    }

    fn read_module(&mut self, module: &schema::Module) -> Result<ModuleFacts, Wrong> {
        let schema::Module {
            path,
            build_id,
            code,
            table,
        } = module;
        let segment = |segment: &schema::CodeSegment| CodeSegment {
            svma: Svma::new(segment.start)..Svma::new(segment.end),
            offset: FileOffset::new(segment.offset),
        };
        let path = self.text(*path)?.to_owned();
        self.copied_bytes.take(path.len())?;
        Ok(ModuleFacts {
            path: path.into(),
            build_id: self.copied_if(*build_id)?,
            code: code.0.iter().map(segment).collect(),
            table: table.clone().map(Into::into),
        })
    }

    fn read_names(&mut self, names: &schema::Names) -> Result<Symbolized, Wrong> {
        let schema::Names {
            symbol,
            offset,
            file,
            line,
            inlined,
            gap,
        } = names;
        let symbol = self.copied_if(*symbol)?;
        let inlined = inlined.0.iter().map(|inlined| self.read_inlined(inlined));
        Ok(Symbolized {
            symbol: symbol.map(|name| Symbol {
                name,
                offset: *offset,
            }),
            inlined: inlined.collect::<Result<_, _>>()?,
            file: self.copied_if(*file)?,
            line: *line,
            gap: gap.as_deref().map(gap_of).transpose()?,
        })
    }

    fn read_inlined(&mut self, inlined: &schema::Inlined) -> Result<InlinedFrame, Wrong> {
        let schema::Inlined { symbol, file, line } = inlined;
        Ok(InlinedFrame {
            symbol: self.copied_if(*symbol)?,
            file: self.copied_if(*file)?,
            line: *line,
        })
    }

    fn read_location(&self, location: &schema::Location) -> Result<Location, Wrong> {
        let schema::Location { pc, module, address } = location;
        let module = module.map(|module| self.module(module)).transpose()?;
        Ok(Location {
            pc: Avma::new(*pc),
            place: module.map(|module| (module, Svma::new(*address))),
        })
    }

    fn read_frame(&self, frame: &schema::Frame) -> Result<Frame, Wrong> {
        let schema::Frame {
            at,
            exact,
            found_by,
            names,
        } = frame;
        Ok(Frame {
            exact: *exact,
            at: self.read_location(at)?,
            found_by: found_by_of(found_by)?,
            names: get(&self.names, *names, "name")?.clone(),
        })
    }

    /// The caller was defined before, so there are no circles.
    fn read_path(&self, schema::Path(caller, frame): schema::Path) -> Result<Path, Wrong> {
        get(&self.frames, frame, "frame")?;
        let above = match caller {
            Some(caller) => get(&self.paths, caller, "path")?.depth,
            None => 0,
        };
        if above >= MOST_DEPTH {
            return wrong("a stack of more frames than there can be");
        }
        Ok(Path {
            caller,
            frame,
            depth: above + 1,
        })
    }

    fn read_site(&mut self, site: &schema::Site) -> Result<Site, Wrong> {
        let schema::Site {
            pid,
            instance,
            allocator,
            kind,
            path,
            end,
            end_at,
        } = site;
        if let Some(path) = *path {
            get(&self.paths, path, "path")?;
        }
        Ok(Site {
            pid: *pid,
            instance: *instance,
            allocator: self.copied(*allocator)?.into(),
            kind: kind.as_deref().map(kind_of).transpose()?,
            path: *path,
            end: end_of(end)?,
            end_at: end_at.as_ref().map(|at| self.read_location(at)).transpose()?,
        })
    }
}

/// The one of `all` that is called `word`.
fn named<T: Copy>(
    all: impl IntoIterator<Item = T>,
    name: fn(T) -> &'static str,
    word: &str,
) -> Result<T, Wrong> {
    match all.into_iter().find(|&thing| name(thing) == word) {
        Some(thing) => Ok(thing),
        None => wrong(format!("`{word}` is no word that this version knows")),
    }
}

pub(super) fn end_of(word: &str) -> Result<End, Wrong> {
    named(End::ALL, |end| end.name(), word)
}

pub(super) fn found_by_of(word: &str) -> Result<FoundBy, Wrong> {
    named(
        (0..).map_while(FoundBy::from_number),
        |found_by| found_by.name(),
        word,
    )
}

fn kind_of(word: &str) -> Result<RegionKind, Wrong> {
    named(RegionKind::ALL, RegionKind::name, word)
}

fn gap_of(word: &str) -> Result<Gap, Wrong> {
    named(GAPS, gap_word, word)
}
