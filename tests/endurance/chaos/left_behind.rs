//! Objects that memleak could leave behind in the kernel, and changes in the code and the counters of
//! processes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use object::{Object as _, ObjectSection};

/// A BPF object, by its id, which is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Program(u32),
    Map(u32),
    Link(u32),
}

/// Name of a kind of object in `fdinfo` of a descriptor, and its constructor.
type Kind = (&'static str, fn(u32) -> Object);

const KINDS: [Kind; 3] = [
    ("prog_id:", Object::Program),
    ("map_id:", Object::Map),
    ("link_id:", Object::Link),
];

/// Objects that are in the kernel.
pub fn existing() -> BTreeSet<Object> {
    let programs = ProgInfoIter::default().map(|program| Object::Program(program.id));
    let maps = MapInfoIter::default().map(|map| Object::Map(map.id));
    let links = LinkInfoIter::default().map(|link| Object::Link(link.id));
    programs.chain(maps).chain(links).collect()
}

/// Objects that a process has descriptors of; none if it has ended.
pub fn objects_of(pid: u32) -> BTreeSet<Object> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return BTreeSet::new();
    };
    let texts = entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.flat_map(|text| objects(&text)).collect()
}

fn objects(fdinfo: &str) -> Vec<Object> {
    let object = |line: &str| {
        let kind = KINDS
            .iter()
            .find_map(|(name, kind)| Some((line.strip_prefix(name)?, kind)));
        kind.and_then(|(id, kind)| Some(kind(id.trim().parse().ok()?)))
    };
    fdinfo.lines().filter_map(object).collect()
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns objects that no process has a descriptor of.
pub fn orphans() -> BTreeSet<Object> {
    // In this order: objects that are created meanwhile are not in the list.
    let mut existing = existing();
    for pid in processes() {
        let objects = objects_of(pid);
        existing.retain(|object| !objects.contains(object));
    }
    existing
}

/// Returns a process and all its descendants.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut tree = vec![pid];
    let mut at = 0;
    while at < tree.len() {
        tree.extend(children(tree[at]));
        at += 1;
    }
    tree
}

/// Returns the children of all threads of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = |text: String| {
        text.split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect::<Vec<u32>>()
    };
    texts.flat_map(pids).collect()
}

/// Returns whether a process is stopped by a signal or has a tracer.
pub fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
            .trim()
    };
    field("State:").to_ascii_lowercase().starts_with('t') || !["", "0"].contains(&field("TracerPid:"))
}

/// Number of bytes in which the code of a process differs from its files. Code that is unmapped meanwhile
/// does not count.
pub fn changed_code(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
        return 0;
    };
    let code = maps
        .lines()
        .filter(|line| line.contains(" r-xp ") && line.contains('/'));
    code.map(|line| changed_in(line, &memory).unwrap_or_default())
        .sum()
}

/// Returns the numbers of tracers that `libmemleak.so` in a process counts, by probe. `None` if it is not
/// loaded there.
pub fn listeners(pid: u32) -> Option<[u16; 4]> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = maps.lines().find(|line| line.ends_with("/libmemleak.so"))?;
    let (range, path) = (line.split_whitespace().next()?, line.split_whitespace().last()?);
    let start = u64::from_str_radix(range.split('-').next()?, 16).ok()?;
    let bytes = fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    // Its first mapping is of the file's first byte, which has address 0.
    let counters = file.section_by_name(".probes").expect("counters").address();
    let mut words = [0; 8];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut words, start + counters).ok()?;
    let (words, _) = words.as_chunks();
    Some(std::array::from_fn(|at| u16::from_ne_bytes(words[at])))
}

fn changed_in(line: &str, memory: &File) -> Option<usize> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, end) = words[0].split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end, offset) = (number(start)?, number(end)?, number(words[2])?);
    let length = usize::try_from(end - start).ok()?;
    let (mut mapped, mut file) = (vec![0; length], vec![0; length]);
    // The last page may extend beyond the end of the file.
    let read = File::open(words.get(5)?).ok()?.read_at(&mut file, offset).ok()?;
    memory.read_exact_at(&mut mapped, start).ok()?;
    Some(
        mapped
            .iter()
            .zip(&file[..read])
            .filter(|(mapped, file)| mapped != file)
            .count(),
    )
}
