//! Runtimes in a process, by the names of the files that it has mapped. They decide which shapes of memory
//! are looked for.

use std::path::Path;

use crate::maps::MapsName;
use crate::smaps::Resident;

/// First address of the heap that Go's runtime asks for on 64-bit systems (`runtime/malloc.go`), and the
/// bytes from there on in which it goes on.
const GO_HEAP: u64 = 0xc0_0000_0000;
const GO_BYTES: u64 = 1 << 39;

/// Runtimes that a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Runtimes {
    pub(super) python: bool,
    pub(super) jvm: bool,
    pub(super) browser: bool,
    pub(super) dotnet: bool,
    pub(super) go: bool,
    pub(super) musl: bool,
    pub(super) database: bool,
    /// An allocator other than the C library's.
    pub(super) allocator: bool,
}

/// Beginnings of file names, and what they are of.
type Mark = (&'static str, fn(&mut Runtimes) -> &mut bool);
const MARKS: [Mark; 20] = [
    ("python", |found| &mut found.python),
    ("libpython", |found| &mut found.python),
    ("libjvm.so", |found| &mut found.jvm),
    ("chrom", |found| &mut found.browser),
    ("headless_shell", |found| &mut found.browser),
    ("electron", |found| &mut found.browser),
    ("libcef.so", |found| &mut found.browser),
    ("msedge", |found| &mut found.browser),
    ("brave", |found| &mut found.browser),
    ("libcoreclr.so", |found| &mut found.dotnet),
    ("ld-musl-", |found| &mut found.musl),
    ("libc.musl-", |found| &mut found.musl),
    ("mariadbd", |found| &mut found.database),
    ("mysqld", |found| &mut found.database),
    ("libjemalloc", |found| &mut found.allocator),
    ("libtcmalloc", |found| &mut found.allocator),
    ("libmimalloc", |found| &mut found.allocator),
    ("libsnmalloc", |found| &mut found.allocator),
    ("libtbbmalloc", |found| &mut found.allocator),
    ("libscudo", |found| &mut found.allocator),
];

impl Runtimes {
    pub(super) fn of(mappings: &[Resident]) -> Self {
        let mut found = Self::default();
        for mapping in mappings {
            let entry = &mapping.entry;
            if entry.name == MapsName::Anonymous && entry.range.start.get() == GO_HEAP {
                found.go = true;
            }
            let MapsName::File { path, .. } = &entry.name else {
                continue;
            };
            if entry.executable && !mapping.entry.shared {
                found.note(path);
            }
        }
        found
    }

    fn note(&mut self, path: &Path) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return;
        };
        // musl's loader and C library are one file; glibc's has a version.
        self.musl |= name == "libc.so";
        for (_, runtime) in MARKS.iter().filter(|(start, _)| name.starts_with(start)) {
            *runtime(self) = true;
        }
    }
}

/// Returns whether Go's heap can be at an address.
pub(super) fn is_of_go(address: u64) -> bool {
    (GO_HEAP..GO_HEAP + GO_BYTES).contains(&address)
}
