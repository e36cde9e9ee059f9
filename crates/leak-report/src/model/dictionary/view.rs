//! Access to the entries of a dictionary together with what they refer to.

use std::ops::Deref;

use unwind_tables::addr::Avma;
use unwind_tables::walk::FoundBy;

use super::{Dictionary, Frame, FrameId, Module, ModuleId, NamesId, Path, PathId, TextId};
use crate::model::{Gap, InlinedFrame, Location, MAX_FOLDED, Place, Symbol, Symbolized};

/// Name of a Python function whose name is not known.
const NAMELESS_PYTHON: &str = "<python function>";

/// Module, with access to its texts.
#[derive(Clone, Copy, Debug)]
pub struct ModuleRef<'a> {
    dictionary: &'a Dictionary,
    module: &'a Module<TextId>,
}

/// Frame, with access to its names and module.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    dictionary: &'a Dictionary,
    id: FrameId,
    frame: &'a Frame,
}

/// Iterator over the frames of a path, innermost first.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    dictionary: &'a Dictionary,
    next: Option<PathId>,
}

impl Dictionary {
    /// Looks up a text. The id must be from this dictionary; another's panics or gives another entry.
    pub fn text(&self, text: TextId) -> &str {
        &self.texts[text.index()].text
    }

    /// Looks up a module.
    pub fn module(&self, module: ModuleId) -> ModuleRef<'_> {
        ModuleRef {
            dictionary: self,
            module: &self.modules[module.index()],
        }
    }

    /// Every module, in the order of ids.
    pub fn modules(&self) -> impl Iterator<Item = ModuleRef<'_>> {
        let modules = self.modules.iter();
        modules.map(|module| ModuleRef {
            dictionary: self,
            module,
        })
    }

    /// Replaces the module's id in a location by the module.
    pub fn location(&self, location: Location<ModuleId>) -> Location<ModuleRef<'_>> {
        location.map(|module| self.module(module))
    }

    /// Looks up a path.
    pub fn path(&self, path: PathId) -> Path {
        self.paths[path.index()]
    }

    /// Looks up a frame.
    pub fn frame(&self, id: FrameId) -> FrameRef<'_> {
        FrameRef {
            dictionary: self,
            id,
            frame: &self.frames[id.index()],
        }
    }

    /// Frames of a path, innermost first; empty for `None`.
    pub fn frames(&self, path: Option<PathId>) -> Frames<'_> {
        Frames {
            dictionary: self,
            next: path,
        }
    }

    fn names(&self, names: NamesId) -> &Symbolized<TextId> {
        &self.names[names.index()]
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = FrameRef<'a>;

    fn next(&mut self) -> Option<FrameRef<'a>> {
        let path = self.dictionary.path(self.next?);
        self.next = path.caller;
        Some(self.dictionary.frame(path.frame))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let depth = self.next.map_or(0, |path| self.dictionary.depth(path)) as usize;
        (depth, Some(depth))
    }
}

impl ExactSizeIterator for Frames<'_> {}

impl Deref for ModuleRef<'_> {
    type Target = Module<TextId>;

    fn deref(&self) -> &Module<TextId> {
        self.module
    }
}

impl<'a> ModuleRef<'a> {
    /// Module with the lifetime of the dictionary.
    pub fn get(self) -> &'a Module<TextId> {
        self.module
    }

    /// Path as the process sees it, or a name in brackets for the vDSO.
    pub fn path(self) -> &'a str {
        self.dictionary.text(self.module.path)
    }

    /// Build ID in hexadecimal digits.
    pub fn build_id(self) -> Option<&'a str> {
        self.module.build_id.map(|text| self.dictionary.text(text))
    }

    /// Last component of the path.
    pub fn file_name(self) -> &'a str {
        let path = self.path().trim_end_matches('/');
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Last component of the path, without the vDSO's brackets.
    pub fn basename(self) -> &'a str {
        self.file_name().trim_matches(['[', ']'])
    }
}

impl Deref for FrameRef<'_> {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        self.frame
    }
}

impl<'a> FrameRef<'a> {
    /// Id of the frame in its dictionary.
    pub fn id(self) -> FrameId {
        self.id
    }

    /// Raw return address.
    pub fn pc(self) -> Avma {
        self.frame.at.pc
    }

    /// Return address and its module. A function of Python has no module, whatever a recording says.
    pub fn location(self) -> Location<ModuleRef<'a>> {
        let Location { pc, place } = self.frame.at;
        let place = place.filter(|_| !self.is_python());
        self.dictionary.location(Location { pc, place })
    }

    /// Module, and the return address in it; `None` outside all modules.
    pub fn place(self) -> Option<Place<ModuleRef<'a>>> {
        self.location().place
    }

    /// Module; `None` outside all modules.
    pub fn module(self) -> Option<ModuleRef<'a>> {
        Some(self.place()?.module)
    }

    /// Name of the module for people, without brackets: that of its file, or `python` for a function of
    /// Python.
    pub fn module_name(self) -> Option<&'a str> {
        match self.is_python() {
            true => Some("python"),
            false => self.module().map(ModuleRef::basename),
        }
    }

    /// True for a function of Python: it is in no module, and its address is not one of machine code.
    pub fn is_python(self) -> bool {
        self.frame.found_by == FoundBy::Python
    }

    /// Function whose machine code contains the address, not one inlined into it; or function of Python,
    /// which always has a name.
    pub fn symbol(self) -> Option<Symbol<&'a str>> {
        let symbol = self.names().symbol.as_ref();
        let named = symbol.map(|symbol| symbol.map(|_, &text| self.dictionary.text(text)));
        match self.is_python() {
            true => Some(Symbol {
                name: named.map_or(NAMELESS_PYTHON, |symbol| symbol.name),
                offset: None,
            }),
            false => named,
        }
    }

    /// Name of [`FrameRef::symbol`].
    pub fn function(self) -> Option<&'a str> {
        Some(self.symbol()?.name)
    }

    /// Names of other functions with the same code, any of which may be the one on the stack.
    pub fn folded(self) -> impl ExactSizeIterator<Item = &'a str> {
        let folded = self.names().folded.iter();
        folded.map(move |&text| self.dictionary.text(text))
    }

    /// Suffix to a name that gives the number of [`FrameRef::folded`] functions; `None` if there are none.
    pub fn folded_mark(self) -> Option<String> {
        match self.names().folded.len() {
            0 => None,
            1 => Some(" (or 1 other)".to_owned()),
            MAX_FOLDED.. => Some(format!(" (or {MAX_FOLDED} others or more)")),
            others => Some(format!(" (or {others} others)")),
        }
    }

    /// Source file of the call in [`FrameRef::symbol`].
    pub fn file(self) -> Option<&'a str> {
        self.names().file.map(|text| self.dictionary.text(text))
    }

    /// Line of the call in [`FrameRef::file`].
    pub fn line(self) -> Option<u32> {
        self.names().line
    }

    /// Reason why a name or line is missing.
    pub fn gap(self) -> Option<Gap> {
        self.names().gap
    }

    /// Functions inlined at the address, innermost first.
    pub fn inlined(
        self,
    ) -> impl ExactSizeIterator<Item = InlinedFrame<&'a str>> + DoubleEndedIterator + Clone {
        let inlined = self.names().inlined.iter();
        inlined.map(move |inlined| inlined.map(|_, &text| self.dictionary.text(text)))
    }

    /// True for nameless code that is called by a named function of its module and by another function,
    /// according to all stacks of the dictionary.
    pub fn is_shared_helper(self) -> bool {
        let place = self.frame.at.place.filter(|_| !self.is_python());
        place.is_some_and(|place| self.dictionary.helpers.is_shared(place))
    }

    fn names(self) -> &'a Symbolized<TextId> {
        self.dictionary.names(self.frame.names)
    }
}
