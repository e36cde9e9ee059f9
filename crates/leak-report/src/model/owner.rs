//! Responsible frame of a stack: the innermost that does not belong to the allocator, the language runtime or
//! the standard library. It is the title of a site in every format.
//!
//! Almost every C++ stack begins with `operator new`, many continue in containers, and C programs often wrap
//! `malloc` to check for failure. None of these frames identifies the code that wanted the memory. Nor does
//! Python's interpreter between the functions of Python that it runs, nor Python's own library; an extension
//! in C does.
//!
//! Such a function is recognized by its name (`names`), by its source file (`sources`), or by its caller
//! (`served`): an interface of allocators, a named function of a stripped library (`helpers`), or a caller
//! that wants an array (`arrays`).

mod arrays;
mod helpers;
mod names;
mod served;
mod sources;

use std::borrow::Cow;

use super::{FrameRef, InlinedFrame, ModuleId, Place, StackRef};
pub use names::is_plumbing;
pub(super) use served::{Served, served};
use sources::is_standard;

/// File name prefixes of libraries that allocate for others.
const LIBRARIES: [&str; 16] = [
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s.so",
    "libc.so",
    "libc-",
    "libc.musl-",
    "libpthread",
    "ld-linux",
    "ld-musl",
    "libtcmalloc",
    "libjemalloc",
    "libmimalloc",
    "libgc.so",
    "libasan",
    "libtalloc.so",
];

/// Responsible function of a stack.
#[derive(Debug)]
pub struct Owner<'a> {
    /// Name of the function, or its address if it has none; not escaped for printing.
    pub function: Cow<'a, str>,
    /// Frame of the function.
    pub frame: FrameRef<'a>,
    /// Index of the frame, and of the function among those inlined there; for the frame's own function, the
    /// number of inlined ones.
    pub at: (usize, usize),
}

impl Owner<'_> {
    /// Source file and line at which the function allocates, or calls what does.
    pub fn source(&self) -> (Option<&str>, Option<u32>) {
        match self.frame.inlined().nth(self.at.1) {
            Some(inlined) => (inlined.file, inlined.line),
            None => (self.frame.file(), self.frame.line()),
        }
    }

    /// Name of the function for places that do not show its file beside it.
    pub fn alone(&self) -> Cow<'_, str> {
        match self.frame.is_python() {
            true => with_file(&self.function, self.frame.file()),
            false => Cow::Borrowed(&self.function),
        }
    }
}

/// Finds the responsible function. If every frame belongs to an allocator, a runtime or a standard library,
/// returns the innermost Python function, or else the innermost frame; `None` for a stack without frames.
pub fn owner(stack: StackRef<'_>) -> Option<Owner<'_>> {
    let interpreters = Interpreters::of(stack);
    let served = served(stack);
    let own = |(number, frame)| {
        if interpreters.contain(frame) {
            return None;
        }
        let (function, inlined) = own_function(frame, served[number])?;
        Some(Owner {
            function,
            frame,
            at: (number, inlined),
        })
    };
    let innermost = || {
        let python = stack.frames().position(FrameRef::is_python);
        let number = python.unwrap_or(0);
        let frame = stack.frames().nth(number)?;
        Some(Owner {
            function: function(frame),
            frame,
            at: (number, frame.inlined().len()),
        })
    };
    stack.frames().enumerate().find_map(own).or_else(innermost)
}

/// Modules of the interpreters that run the Python functions of a stack.
///
/// An interpreter is recognized by the frame that runs a Python function, the next native one outwards: a
/// program can contain the interpreter or load it as a library, and many of its functions have no name. It is
/// also recognized by its file name, as a walk can end before that frame.
pub(super) struct Interpreters(Vec<ModuleId>);

impl Interpreters {
    /// Interpreters of a stack; none if no function of Python is in it.
    pub(super) fn of(stack: StackRef<'_>) -> Self {
        let mut modules = Vec::new();
        let mut add = |frame: FrameRef<'_>| {
            let module = frame.at.place.map(|place| place.module);
            modules.extend(module.filter(|module| !modules.contains(module)));
        };
        let callers = stack.frames().skip(1);
        for (frame, caller) in stack.frames().zip(callers) {
            if frame.is_python() && !caller.is_python() {
                add(caller);
            }
        }
        if stack.frames().any(FrameRef::is_python) {
            stack
                .frames()
                .filter(|&frame| is_of_interpreter(frame))
                .for_each(add);
        }
        Self(modules)
    }

    /// True for a native frame of one of the interpreters.
    pub(super) fn contain(&self, frame: FrameRef<'_>) -> bool {
        let place = frame.at.place.filter(|_| !frame.is_python());
        place.is_some_and(|place| self.0.contains(&place.module))
    }
}

/// True for a frame in a file with the name of a Python interpreter or of its library.
fn is_of_interpreter(frame: FrameRef<'_>) -> bool {
    let name = frame.module().map(|module| module.basename());
    name.is_some_and(|name| name.starts_with("python3") || name.starts_with("libpython3"))
}

/// Functions of a stack from the responsible one outwards, including inlined ones, without those of a Python
/// interpreter; not escaped for printing.
pub fn callers(stack: StackRef<'_>) -> impl Iterator<Item = Cow<'_, str>> {
    let (first, inlined) = owner(stack).map_or((0, 0), |owner| owner.at);
    let interpreters = Interpreters::of(stack);
    let frames = stack.frames().enumerate().skip(first);
    let frames = frames.filter(move |&(number, frame)| number == first || !interpreters.contain(frame));
    let functions = frames.flat_map(|(_, frame)| {
        let inlined = frame
            .inlined()
            .map(|inlined| Cow::from(inlined.symbol.unwrap_or("[unknown]")));
        let own = match frame.function() {
            Some(name) if frame.is_python() => with_file(name, frame.file()),
            Some(_) | None => function(frame),
        };
        inlined.chain([own])
    });
    functions.skip(inlined)
}

/// True for a frame without a name in the library of a runtime or an allocator.
pub fn is_nameless_runtime(frame: FrameRef<'_>) -> bool {
    frame.symbol().is_none() && frame.inlined().len() == 0 && is_in_library(frame)
}

fn is_in_library(frame: FrameRef<'_>) -> bool {
    frame.module().is_some_and(|module| {
        let name = module.basename();
        LIBRARIES.iter().any(|library| name.starts_with(library)) || is_python_extension(module.path())
    })
}

/// True for an extension in C that comes with Python.
fn is_python_extension(path: &str) -> bool {
    path.contains("/python3") && path.contains("/lib-dynload/")
}

/// Name of a frame's function, or its address (`module+svma`) if it has none.
pub fn function(frame: FrameRef<'_>) -> Cow<'_, str> {
    match (frame.function(), frame.place()) {
        (Some(name), _) => name.into(),
        (None, Some(Place { module, svma })) => format!("{}+{svma:#x}", module.basename()).into(),
        (None, None) => format!("{:#x}", frame.pc()).into(),
    }
}

/// Name of a Python function for places that do not show its file beside it: `<module>` and the like say
/// nothing without the file, which is appended to them.
pub fn with_file<'a>(name: &'a str, file: Option<&str>) -> Cow<'a, str> {
    match file.filter(|_| name.starts_with('<')) {
        Some(file) => format!("{name} {}", file.rsplit('/').next().unwrap_or(file)).into(),
        None => name.into(),
    }
}

/// Flags for the functions of a frame, the inlined ones first, then the frame's own: true if the function
/// belongs to an allocator, a runtime or a standard library, or is [`served`].
pub(super) fn plumbing(frame: FrameRef<'_>, served: Served) -> Vec<bool> {
    let is_all = served == Served::All || is_in_library(frame);
    let inlined = inlined_plumbing(frame);
    inlined
        .chain([served == Served::Own || is_own_plumbing(frame)])
        .map(|is_plumbing| is_plumbing || is_all)
        .collect()
}

/// True for each inlined function of a frame that is plumbing, innermost first.
fn inlined_plumbing(frame: FrameRef<'_>) -> impl Iterator<Item = bool> {
    let callers = frame.inlined().map(|inlined| inlined.symbol).skip(1);
    let with_callers = frame.inlined().zip(callers.chain([frame.function()]));
    with_callers.map(|(inlined, caller)| {
        let is_implementation = || names::is_implementation(inlined.symbol?, caller?).then_some(());
        is_inlined_plumbing(inlined) || is_implementation().is_some()
    })
}

fn is_own_plumbing(frame: FrameRef<'_>) -> bool {
    match frame.is_python() {
        // The name of a C function says nothing about a Python function.
        true => frame.file().is_some_and(is_python_library),
        false => is_plumbing(&function(frame)) || frame.file().is_some_and(is_standard),
    }
}

/// True for a source file of Python's standard library, not of a package that is installed there.
fn is_python_library(file: &str) -> bool {
    let is_installed = file.contains("/site-packages/") || file.contains("/dist-packages/");
    file.starts_with("<frozen ") || file.contains("/lib/python3") && !is_installed
}

fn own_function(frame: FrameRef<'_>, served: Served) -> Option<(Cow<'_, str>, usize)> {
    if served == Served::All || is_in_library(frame) {
        return None;
    }
    let named = frame.inlined().map(|inlined| inlined.symbol);
    let own = named
        .zip(inlined_plumbing(frame))
        .zip(0..)
        .find_map(|((name, is_plumbing), number)| Some((name.filter(|_| !is_plumbing)?, number)));
    match own {
        Some((name, number)) => Some((name.into(), number)),
        None if served == Served::Own || is_own_plumbing(frame) => None,
        None => Some((function(frame), frame.inlined().len())),
    }
}

/// True for an inlined function that allocates for others. Debug information can omit the namespace of such a
/// function; its source file then identifies it.
pub fn is_inlined_plumbing(function: InlinedFrame<&str>) -> bool {
    function.symbol.is_some_and(is_plumbing) || function.file.is_some_and(is_standard)
}

#[cfg(test)]
mod tests;
