//! Debug information that the compiler left in separate files (`-gsplit-dwarf`): `.dwo` files, and `.dwp`
//! packages of them.
//!
//! The program's own file has the lines, and for each unit its ID and the name of the file with the rest.
//! That file is used only if it has the same ID. It is looked for when an address of the unit is looked up.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{DebugInfo, Dwarf, DwarfPackage, DwoId, Reader as _, Section, SectionId, UnitType};
use object::read::ReadCache;

use super::debug_file::{DEBUG_DIRECTORY, open_regular};
use super::elf::{malformed, parse_copied};
use super::live_code::{LiveCode, Survey};
use super::proportions;
use super::reader::Reader;
use super::sections::{Budget, Content, Source};
use leak_report::model::Gap;

#[derive(Debug)]
pub(super) struct SplitUnits {
    roots: Vec<PathBuf>,
    /// Paths of the object and its debug file.
    objects: Vec<PathBuf>,
    /// The object's code.
    code: Arc<LiveCode>,
    /// The object's package, after the first lookup.
    package: Option<Result<DwarfPackage<Reader>, Gap>>,
    budget: Budget,
    /// Reason why a unit was not found.
    gap: Option<Gap>,
}

impl SplitUnits {
    /// Prepares lookups for an object with the file and debug file `objects`, under each of `roots` in turn;
    /// bytes read are added to `budget`.
    pub(super) fn new(
        roots: Vec<PathBuf>,
        objects: Vec<PathBuf>,
        code: Arc<LiveCode>,
        budget: Budget,
    ) -> Self {
        Self {
            roots,
            objects,
            code,
            package: None,
            budget,
            gap: None,
        }
    }

    /// Bytes read for the object so far.
    pub(super) fn taken(&self) -> u64 {
        self.budget.taken()
    }

    /// Reason why a unit was not found; `None` if all were.
    pub(super) fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// Loads the unit that `wanted` describes, without others.
    pub(super) fn load(&mut self, wanted: &SplitDwarfLoad<Reader>) -> Option<Arc<Dwarf<Reader>>> {
        if self.code.part_here(wanted.dwo_id).is_removed() {
            return None;
        }
        let unit = self.find(wanted);
        self.gap = self.gap.or(unit.as_ref().err().copied());
        unit.ok().map(Arc::new)
    }

    fn find(&mut self, wanted: &SplitDwarfLoad<Reader>) -> Result<Dwarf<Reader>, Gap> {
        let packed = self.packed(wanted);
        let mut unit = match packed {
            Ok(unit) => unit,
            Err(absent) => self.unpacked(wanted, absent)?,
        };
        let part_here = self.code.part_here(wanted.dwo_id);
        let survey = Survey::of_split(&unit, &self.code, part_here).map_err(malformed)?;
        if part_here.has_lists() {
            let lists = unit.ranges.debug_ranges().reader();
            let lists = lists.decided_by(SectionId::DebugRanges, self.code.with(survey));
            unit.ranges.set_debug_ranges(lists.into());
        }
        Ok(unit)
    }

    /// Loads a unit from the package.
    fn packed(&mut self, wanted: &SplitDwarfLoad<Reader>) -> Result<Dwarf<Reader>, Gap> {
        let Self {
            roots,
            objects,
            package,
            budget,
            code: _,
            gap: _,
        } = self;
        let package = package.get_or_insert_with(|| find_package(roots, objects, budget));
        let package = package.as_ref().map_err(|gap| *gap)?;
        let unit = package.find_cu(wanted.dwo_id, &wanted.parent);
        let unit = unit.map_err(malformed)?.ok_or(Gap::NoSplitFile)?;
        alone(unit, wanted.dwo_id).ok_or(Gap::Malformed)
    }

    /// Loads a unit from its own file; fails with `absent` if there is none.
    fn unpacked(&mut self, wanted: &SplitDwarfLoad<Reader>, absent: Gap) -> Result<Dwarf<Reader>, Gap> {
        let paths = unit_paths(&self.objects, wanted);
        for file in opened(&self.roots, &paths) {
            let cache = ReadCache::new(&file);
            let Some(elf) = parse_copied(&cache) else {
                continue;
            };
            let content = Content::File(&file);
            let mut unit = Source {
                elf: &elf,
                content,
                code: None,
            }
            .split(&mut self.budget)?;
            proportions::check_units(&unit)?;
            unit.make_dwo(&wanted.parent);
            if let Some(unit) = alone(unit, wanted.dwo_id) {
                return Ok(unit);
            }
        }
        Err(absent)
    }
}

/// Opens those of `paths` that exist, under each of `roots` in turn.
fn opened(roots: &[PathBuf], paths: &[PathBuf]) -> impl Iterator<Item = File> {
    let all = roots
        .iter()
        .flat_map(move |root| paths.iter().map(move |path| (root, path)));
    all.filter_map(|(root, path)| Some(open_regular(root, path).ok()?.file))
}

fn find_package(
    roots: &[PathBuf],
    objects: &[PathBuf],
    budget: &mut Budget,
) -> Result<DwarfPackage<Reader>, Gap> {
    let paths: Vec<PathBuf> = objects.iter().flat_map(|object| package_paths(object)).collect();
    let file = opened(roots, &paths).next().ok_or(Gap::NoSplitFile)?;
    let cache = ReadCache::new(&file);
    let elf = parse_copied(&cache).ok_or(Gap::Malformed)?;
    let content = Content::File(&file);
    Source {
        elf: &elf,
        content,
        code: None,
    }
    .package(budget)
}

/// Possible paths of an object's package: the name that `dwp` gives it, beside the object or in
/// [`DEBUG_DIRECTORY`].
fn package_paths(object: &Path) -> [PathBuf; 2] {
    let mut name = object.as_os_str().to_owned();
    name.push(".dwp");
    let beside = PathBuf::from(name);
    let below_root = beside.strip_prefix("/").unwrap_or(&beside);
    let kept = Path::new(DEBUG_DIRECTORY).join(below_root);
    [beside, kept]
}

/// Possible paths of a unit's file: where the compiler put it, or beside the object.
fn unit_paths(objects: &[PathBuf], wanted: &SplitDwarfLoad<Reader>) -> Vec<PathBuf> {
    let Some(name) = wanted.path.as_ref().and_then(path) else {
        return Vec::new();
    };
    let compiled_in = wanted.comp_dir.as_ref().and_then(path).unwrap_or_default();
    let mut paths = Vec::new();
    for directory in objects.iter().filter_map(|object| object.parent()) {
        // Joining an absolute path replaces the directory.
        paths.push(directory.join(&compiled_in).join(&name));
        paths.push(directory.join(&name));
        paths.extend(name.file_name().map(|name| directory.join(name)));
    }
    paths.dedup();
    paths
}

fn path(bytes: &Reader) -> Option<PathBuf> {
    let bytes = bytes.to_slice().ok()?;
    (!bytes.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&bytes)))
}

/// Restricts `dwarf` to the unit with this ID: type units can precede it.
fn alone(mut dwarf: Dwarf<Reader>, id: DwoId) -> Option<Dwarf<Reader>> {
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().ok()? {
        if matches!(header.type_(), UnitType::Type { .. } | UnitType::SplitType { .. }) {
            continue;
        }
        let start = header.debug_info_offset()?.0;
        let end = start.checked_add(header.length_including_self())?;
        if dwarf.unit(header).ok()?.dwo_id == Some(id) {
            let unit = dwarf.debug_info.reader().range(start, end);
            dwarf.debug_info = DebugInfo::from(unit);
            return Some(dwarf);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(directory: &str, name: &str) -> SplitDwarfLoad<Reader> {
        let reader = |text: &str| Reader::new(Arc::from(text.as_bytes()));
        let nothing: Result<_, ()> = Dwarf::load(|_| Ok(reader("")));
        SplitDwarfLoad {
            dwo_id: DwoId(1),
            comp_dir: Some(reader(directory)),
            path: Some(reader(name)),
            parent: Arc::new(nothing.expect("nothing fails")),
        }
    }

    /// A unit's file is where the compiler put it, or beside the object under its whole or its last name.
    #[test]
    fn places_of_units() {
        let check = |directory, name, expected: &[&str]| {
            let objects = [PathBuf::from("/opt/bin/x")];
            let paths = unit_paths(&objects, &wanted(directory, name));
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(paths, expected, "{directory} {name}");
        };
        check(
            "/src",
            "a/x.dwo",
            &["/src/a/x.dwo", "/opt/bin/a/x.dwo", "/opt/bin/x.dwo"],
        );
        check("", "x.dwo", &["/opt/bin/x.dwo"]);
        check("../src", "x.dwo", &["/opt/bin/../src/x.dwo", "/opt/bin/x.dwo"]);
        check("/src", "/tmp/x.dwo", &["/tmp/x.dwo", "/opt/bin/x.dwo"]);
        check("/src", "", &[]);
    }

    /// A package is beside the object, with its whole name, or in the directory of debug files.
    #[test]
    fn places_of_packages() {
        let expected = ["/opt/libx.so.1.dwp", "/usr/lib/debug/opt/libx.so.1.dwp"];
        let paths = package_paths(Path::new("/opt/libx.so.1"));
        assert_eq!(paths, expected.map(PathBuf::from));
    }
}
