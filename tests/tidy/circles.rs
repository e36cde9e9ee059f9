//! Circles of files that import one another: whoever changes one of them has to know all.
//!
//! An import counts for the file that defines what is imported: a module that only hands on names of others
//! (`pub use`) is no member of a circle. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use syn::visit::{self, Visit};
use syn::{Attribute, ItemFn, ItemImpl, ItemMod, ItemUse, Meta, UseTree, Visibility};

use super::{assert_none, crates, sources};

/// Maximum number of files of a circle.
const MAX_FILES: usize = 3;

/// Larger circles: the first file of each, by its name, and the number of its files, which may shrink:
/// tables, walks and architectures of `unwind-tables`, which are what they are together.
const LARGER: [(&str, usize); 3] = [
    ("unwind-tables/src/architecture.rs", 5),
    ("unwind-tables/src/build.rs", 6),
    ("unwind-tables/src/walk.rs", 4),
];

/// Names of modules from the root of the crate to a file.
type Module = Vec<String>;

/// The modules of a crate that are files.
#[derive(Default)]
struct Files {
    modules: BTreeSet<Module>,
    /// Names that a module hands on, with their places.
    handed_on: BTreeMap<Module, BTreeMap<String, Module>>,
    /// Names of other crates that a module hands on.
    foreign: BTreeMap<Module, BTreeSet<String>>,
}

impl Files {
    /// The file that defines what a path names, seen from `from`; `None` if it is not in this crate.
    fn file_of(&self, from: &[String], path: &[String]) -> Option<Module> {
        let mut at = from.to_vec();
        let mut rest = path;
        match rest.split_first()? {
            (first, after) if first == "crate" => (at, rest) = (Module::new(), after),
            (first, after) if first == "self" => rest = after,
            (first, _) if first == "super" => {}
            (first, _) => {
                let child = joined(&self.file_around(&at), first);
                self.modules.get(&child)?;
                at = self.file_around(&at);
            }
        }
        while let Some((_, after)) = rest.split_first().filter(|(first, _)| *first == "super") {
            at.pop();
            rest = after;
        }
        let mut at = self.file_around(&at);
        for name in rest {
            let child = joined(&at, name);
            let is_foreign = self.foreign.get(&at).is_some_and(|names| names.contains(name));
            match self.handed_on.get(&at).and_then(|names| names.get(name)) {
                _ if self.modules.contains(&child) => at = child,
                None if is_foreign => return None,
                Some(place) => at.clone_from(place),
                None => break,
            }
        }
        Some(at)
    }

    /// The file that contains a module, which may be written in it.
    fn file_around(&self, module: &[String]) -> Module {
        let mut at = module.to_vec();
        while !self.modules.contains(&at) && at.pop().is_some() {}
        at
    }
}

fn joined(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// Names on the way to a file below its crate's directory; none for `lib.rs` and `main.rs`.
fn module_of(path: &Path) -> Module {
    let names = path.with_extension("");
    let names = names.components().filter_map(|name| match name {
        Component::Normal(name) => name.to_str(),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    });
    let mut module: Module = names.map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod") || module == ["lib"] || module == ["main"] {
        module.pop();
    }
    module
}

/// Paths that a file names, each with the module that it is seen from.
#[derive(Default)]
struct Names {
    module: Module,
    imported: Vec<(Module, Vec<String>)>,
    /// Paths that a file hands on, each with its new name.
    handed_on: Vec<(Module, Vec<String>, String)>,
}

impl Names {
    fn of(module: &[String], text: &str) -> Self {
        let mut names = Self {
            module: module.to_vec(),
            ..Self::default()
        };
        names.visit_file(&syn::parse_file(text).expect("source that compiles"));
        names
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        Meta::List(_) | Meta::Path(_) | Meta::NameValue(_) => false,
    })
}

/// All paths of a `use`, with the names by which they are known from then on.
fn paths_of(tree: &UseTree, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let named =
        |name: &syn::Ident, known: &syn::Ident| (joined(before, &name.to_string()), known.to_string());
    match tree {
        UseTree::Path(path) => paths_of(&path.tree, &joined(before, &path.ident.to_string()), found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| paths_of(tree, before, found)),
        UseTree::Name(name) => found.push(named(&name.ident, &name.ident)),
        UseTree::Rename(renamed) => found.push(named(&renamed.ident, &renamed.rename)),
        UseTree::Glob(_) => found.push((before.to_vec(), String::new())),
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if is_test(&item.attrs) {
            return;
        }
        let mut paths = Vec::new();
        paths_of(&item.tree, &[], &mut paths);
        for (path, name) in paths {
            let from = self.module.clone();
            match item.vis {
                Visibility::Inherited => self.imported.push((from, path)),
                Visibility::Public(_) | Visibility::Restricted(_) => self.handed_on.push((from, path, name)),
            }
        }
    }

    /// A visibility says who may import, and is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        if path.segments.len() > 1 {
            self.imported.push((self.module.clone(), names.collect()));
        }
        visit::visit_path(self, path);
    }
}

/// Files that each file of a crate imports, which are given with their paths below its directory.
fn imports(files: &[(&Path, &str)]) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut known = Files {
        modules: files.iter().map(|(path, _)| module_of(path)).collect(),
        ..Files::default()
    };
    let named = files.iter().map(|(path, text)| {
        let module = module_of(path);
        let names = Names::of(&module, text);
        (module, names)
    });
    let named: Vec<_> = named.collect();
    for (module, names) in &named {
        let foreign = names
            .handed_on
            .iter()
            .filter(|(from, path, _)| known.file_of(from, path).is_none());
        let foreign: Vec<_> = foreign.map(|(_, _, name)| name.clone()).collect();
        // The files of a library and of its program are one module here.
        known.foreign.entry(module.clone()).or_default().extend(foreign);
    }
    // Some are handed on twice.
    for _ in 0..3 {
        for (module, names) in &named {
            let places = names
                .handed_on
                .iter()
                .filter_map(|(from, path, name)| Some((name.clone(), known.file_of(from, path)?)));
            let places: Vec<_> = places.filter(|(_, place)| place != module).collect();
            known.handed_on.entry(module.clone()).or_default().extend(places);
        }
    }
    let files_of = |(module, names): &(Module, Names)| {
        let files = names
            .imported
            .iter()
            .filter_map(|(from, path)| known.file_of(from, path));
        (module.clone(), files.filter(|file| file != module).collect())
    };
    named.iter().map(files_of).collect()
}

/// Sets of modules each of which imports all others of its set, itself or through them.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for imported in imports.get(module).into_iter().flatten() {
                if seen.insert(imported.clone()) {
                    next.push(imported);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &Module| -> BTreeSet<Module> {
        let others = reached[module].iter();
        let circle = others.filter(|other| reached.get(other).is_some_and(|back| back.contains(module)));
        circle.cloned().collect()
    };
    let all: BTreeSet<_> = imports
        .keys()
        .map(circle)
        .filter(|circle| circle.len() > 1)
        .collect();
    all.into_iter().collect()
}

/// No circle has more than [`MAX_FILES`] files, but for those of [`LARGER`].
#[test]
fn circles_are_small() {
    let mut offences = Vec::new();
    let mut larger = BTreeMap::new();
    for directory in crates() {
        let sources = sources(&directory, &["rs"]);
        let below = |path| Path::strip_prefix(path, &directory).expect("below it");
        let files: Vec<_> = sources
            .iter()
            .map(|file| (below(&file.path), file.text.as_str()))
            .filter(|(path, _)| !path.components().any(|name| name.as_os_str() == "tests"))
            .filter(|(path, _)| path.file_stem().is_some_and(|name| name != "tests"))
            .collect();
        let names: BTreeMap<Module, String> = files
            .iter()
            .map(|(path, _)| (module_of(path), format!("{directory}/{}", path.display())))
            .collect();
        for circle in circles(&imports(&files))
            .iter()
            .filter(|circle| circle.len() > MAX_FILES)
        {
            let members: Vec<_> = circle.iter().map(|module| names[module].as_str()).collect();
            match LARGER.iter().find(|(first, _)| members.first() == Some(first)) {
                Some(&(first, _)) => _ = larger.insert(first, members.len()),
                None => offences.push(format!("{}: {}", members.len(), members.join(" "))),
            }
        }
    }
    assert_none(&offences, "circles of more than 3 files");
    assert_eq!(larger, BTreeMap::from(LARGER), "write down which are left");
}

/// Names that are handed on count for the file that defines them, paths in expressions count as imports do,
/// and tests do not.
#[test]
fn imports_are_of_the_defining_file() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "a/mod.rs",
            "mod inner; mod user; pub use inner::{Of as Other, Thing}; fn f() { inner::g() }",
        ),
        (
            "a/inner.rs",
            "pub struct Thing; pub fn g() { let _ = super::user::h; }",
        ),
        (
            "a/user.rs",
            "use super::Thing; use crate::b::{self, Named}; #[cfg(test)] mod tests { use crate::c::C; }",
        ),
        (
            "b.rs",
            "pub enum Named {} mod within { use super::super::a::Thing; }",
        ),
        (
            "c.rs",
            "type C = crate::a::user::U; fn f() -> std::fs::File { b::x() }",
        ),
    ];
    let files = files.map(|(path, text)| (Path::new(path), text));
    let imports = imports(&files);
    let of = |module: &[&str]| -> Vec<String> {
        let module: Module = module.iter().map(|&name| name.to_owned()).collect();
        imports[&module].iter().map(|module| module.join("::")).collect()
    };
    assert_eq!(of(&["a"]), ["a::inner"]);
    assert_eq!(of(&["a", "inner"]), ["a::user"]);
    assert_eq!(of(&["a", "user"]), ["a::inner", "b"]);
    assert_eq!(of(&["b"]), ["a::inner"]);
    assert_eq!(of(&["c"]), ["a::user"]);
    let circles = circles(&imports);
    let sizes: Vec<_> = circles.iter().map(BTreeSet::len).collect();
    assert_eq!(sizes, [3], "{circles:?}");
}
