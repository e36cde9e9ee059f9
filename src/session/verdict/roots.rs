//! Roots of chains by name: variables, sections, threads.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use unwind_tables::addr::{Avma, Bias};

use crate::process::maps::{MapsEntry, MapsName};
use crate::process::{MappedCode, ModuleId, Modules, Target};
use crate::reach::places::{Place, Places};
use crate::symbolize::{Declared, VariableFinder, VariablePlace, Variables};
use leak_report::model::{Root, RootKind, ThreadName};

/// Objects of a process whose data roots can be in.
pub(super) struct Objects {
    modules: Modules,
    /// The program comes first, if it is known.
    loaded: Vec<Loaded>,
    finder: VariableFinder,
}

/// An object that is mapped.
struct Loaded {
    module: ModuleId,
    bias: Bias,
    /// Read on first use.
    variables: Option<Variables>,
}

/// Identity of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Variable(usize, VariablePlace),
    /// The section that begins there; 0 for none.
    Section(usize, u64),
    ThreadVariable(usize, VariablePlace),
    Other(RootKind, usize),
}

/// Roots that were found, by number.
pub(super) struct Roots<'a> {
    pub(super) objects: &'a mut Objects,
    places: &'a Places,
    pid: u32,
    mappings: &'a [MapsEntry],
    /// ID and thread pointer of each thread.
    threads: &'a [(u32, Avma)],
    numbers: HashMap<Key, u32>,
    /// With the first address that was found.
    found: Vec<(Key, Avma)>,
}

impl Objects {
    /// Objects of process `pid`; none if it cannot be read.
    pub(super) fn of(pid: u32) -> Self {
        let mut objects = Self {
            modules: Modules::new(),
            loaded: Vec::new(),
            finder: VariableFinder::new(vec![
                PathBuf::from(format!("/proc/{pid}/root")),
                PathBuf::from("/"),
            ]),
        };
        let Ok(target) = Target::open(pid) else {
            return objects;
        };
        let Ok(mappings) = target.read_mappings(&mut objects.modules) else {
            return objects;
        };
        let mut seen = HashSet::new();
        for entry in mappings.entries() {
            if let MappedCode::Module { module, bias } = entry.code
                && seen.insert((module, bias.get()))
            {
                let variables = None;
                objects.loaded.push(Loaded {
                    module,
                    bias,
                    variables,
                });
            }
        }
        let modules = &objects.modules;
        let is_program = |loaded: &Loaded| {
            modules
                .get(loaded.module)
                .is_some_and(|module| module.path == target.exe())
        };
        objects.loaded.sort_by_key(|loaded| !is_program(loaded));
        objects
    }

    /// Memory of the objects' segments that `is_asked` selects, each with its object's number, ascending.
    pub(super) fn memory(
        &self,
        is_asked: impl Fn(&unwind_tables::elf::Segment) -> bool,
    ) -> Vec<(std::ops::Range<Avma>, usize)> {
        let mut memory = Vec::new();
        for (loaded, number) in self.loaded.iter().zip(0..) {
            let segments = self
                .modules
                .get(loaded.module)
                .map_or(&[][..], |module| module.segments());
            for segment in segments.iter().filter(|segment| is_asked(segment)) {
                let (start, end) = (
                    loaded.bias.to_avma(segment.svma.start),
                    loaded.bias.to_avma(segment.svma.end),
                );
                if start < end {
                    memory.push((start..end, number));
                }
            }
        }
        memory.sort_by_key(|(range, _)| range.start);
        memory
    }

    /// Bytes of the program's thread-local variables, up to the thread pointer (ELF TLS, variant II: x86-64).
    pub(super) fn storage(&mut self) -> u64 {
        let storage = self.variables(0).and_then(|variables| variables.storage);
        match storage {
            Some((bytes, align)) if cfg!(target_arch = "x86_64") => {
                bytes.checked_next_multiple_of(align).unwrap_or(0)
            }
            Some(_) | None => 0,
        }
    }

    /// SVMA of an address in an object.
    pub(super) fn svma(&self, object: usize, at: Avma) -> Option<u64> {
        Some(self.loaded.get(object)?.bias.to_svma(at).get())
    }

    /// Variables of an object.
    pub(super) fn variables(&mut self, object: usize) -> Option<&Variables> {
        let loaded = self.loaded.get_mut(object)?;
        let module = self.modules.get(loaded.module)?;
        let read = || self.finder.variables(module.bytes(), &module.path);
        Some(loaded.variables.get_or_insert_with(read))
    }

    fn declarations(
        &self,
        object: usize,
        places: &HashSet<VariablePlace>,
    ) -> HashMap<VariablePlace, Declared> {
        let module = self
            .loaded
            .get(object)
            .and_then(|loaded| self.modules.get(loaded.module));
        module.map_or_else(HashMap::new, |module| {
            self.finder.declarations(module.bytes(), &module.path, places)
        })
    }

    fn path(&self, object: usize) -> Option<Arc<str>> {
        let module = self.modules.get(self.loaded.get(object)?.module)?;
        Some(module.path.to_string_lossy().into())
    }
}

impl<'a> Roots<'a> {
    pub(super) fn new(
        objects: &'a mut Objects,
        places: &'a Places,
        pid: u32,
        mappings: &'a [MapsEntry],
        threads: &'a [(u32, Avma)],
    ) -> Self {
        Self {
            objects,
            places,
            pid,
            mappings,
            threads,
            numbers: HashMap::new(),
            found: Vec::new(),
        }
    }

    /// Number of the root at an address.
    pub(super) fn at(&mut self, at: Avma) -> u32 {
        let key = match self.places.find(at) {
            Some(Place::Data(object)) => self.data(object, at),
            Some(Place::ThreadLocal(thread)) => self.thread_local(thread, at),
            Some(Place::Stack(thread)) => Key::Other(RootKind::Stack, thread),
            Some(Place::Mapped(mapping)) => Key::Other(RootKind::Mapped, mapping),
            Some(Place::Untraced) | None => Key::Other(RootKind::Untraced, 0),
        };
        self.number(key, at)
    }

    /// Number of a root that has no address: registers of a thread, or the kernel.
    pub(super) fn without_address(&mut self, kind: RootKind, thread: usize) -> u32 {
        self.number(Key::Other(kind, thread), Avma::new(0))
    }

    fn number(&mut self, key: Key, at: Avma) -> u32 {
        let next = u32::try_from(self.found.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.found.push((key, at));
        }
        number
    }

    fn data(&mut self, object: usize, at: Avma) -> Key {
        let svma = self.objects.svma(object, at).unwrap_or_default();
        let Some(variables) = self.objects.variables(object) else {
            return Key::Section(object, 0);
        };
        match variables.find(VariablePlace::Memory(svma)) {
            Some(variable) => Key::Variable(object, variable.begin),
            None => Key::Section(object, variables.section(svma).map_or(0, |(_, start)| start)),
        }
    }

    fn thread_local(&mut self, thread: usize, at: Avma) -> Key {
        let storage = self.objects.storage();
        let before = self
            .threads
            .get(thread)
            .map_or(0, |(_, tp)| tp.get().wrapping_sub(at.get()));
        let offset = storage.checked_sub(before).filter(|_| before > 0);
        let variable = offset.and_then(|offset| {
            let variables = self.objects.variables(0)?;
            variables.find(VariablePlace::ThreadLocal(offset))
        });
        match variable {
            Some(variable) => Key::ThreadVariable(thread, variable.begin),
            None => Key::Other(RootKind::ThreadLocal, thread),
        }
    }

    /// Declarations of the variables that were found, by object.
    fn declared(&self) -> HashMap<usize, HashMap<VariablePlace, Declared>> {
        let mut places: HashMap<usize, HashSet<VariablePlace>> = HashMap::new();
        for (key, _) in &self.found {
            match *key {
                Key::Variable(object, place) => _ = places.entry(object).or_default().insert(place),
                Key::ThreadVariable(_, place) => _ = places.entry(0).or_default().insert(place),
                Key::Section(..) | Key::Other(..) => {}
            }
        }
        let declared = places
            .into_iter()
            .map(|(object, places)| (object, self.objects.declarations(object, &places)));
        declared.collect()
    }

    /// Names all roots.
    pub(super) fn named(self) -> Vec<Root> {
        let declared = self.declared();
        let Self {
            objects,
            pid,
            mappings,
            threads,
            found,
            ..
        } = self;
        let thread = |number: usize| {
            let (tid, _) = threads.get(number)?;
            let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
            let name = String::from_utf8_lossy(name.trim_ascii_end()).into();
            Some(ThreadName { tid: *tid, name })
        };
        let mut variable = |object: usize, place| {
            let name = objects
                .variables(object)
                .and_then(|variables| variables.find(place));
            let declared = declared.get(&object).and_then(|declared| declared.get(&place));
            let (file, line) = declared.cloned().unzip();
            Root {
                object: objects.path(object),
                symbol: name.map(|name| name.name().into()),
                file: file.map(Into::into),
                line,
                ..Root::of(RootKind::Data)
            }
        };
        let mut sections = Vec::new();
        let roots = found.into_iter().map(|(key, at)| match key {
            Key::Variable(object, place) => variable(object, place),
            Key::ThreadVariable(number, place) => Root {
                kind: RootKind::ThreadLocal,
                thread: thread(number),
                ..variable(0, place)
            },
            Key::Section(object, start) => {
                sections.push((object, start, at));
                Root::of(RootKind::Data)
            }
            Key::Other(RootKind::Mapped, number) => Root {
                object: mappings.get(number).and_then(file_of),
                ..Root::of(RootKind::Mapped)
            },
            Key::Other(kind @ (RootKind::Stack | RootKind::Registers | RootKind::ThreadLocal), number) => {
                Root {
                    thread: thread(number),
                    ..Root::of(kind)
                }
            }
            Key::Other(kind @ (RootKind::Data | RootKind::Kernel | RootKind::Untraced), _) => Root::of(kind),
        });
        let mut roots: Vec<_> = roots.collect();
        let unnamed = roots
            .iter_mut()
            .filter(|root| root.kind == RootKind::Data && root.object.is_none());
        for (root, (object, start, at)) in unnamed.zip(sections) {
            let svma = objects.svma(object, at).unwrap_or_default();
            let section = objects
                .variables(object)
                .and_then(|variables| variables.section(svma));
            root.section = section.map(|(name, _)| name.into());
            root.object = objects.path(object);
            root.offset = svma.saturating_sub(start);
        }
        roots
    }
}

fn file_of(mapping: &MapsEntry) -> Option<Arc<str>> {
    match &mapping.name {
        MapsName::File { path, .. } => Some(path.to_string_lossy().into()),
        MapsName::Special(name) => Some(name.as_str().into()),
        MapsName::Anonymous => None,
    }
}
