//! Code that was mapped at a past moment, according to a log. By now, the mapping may be gone, the process
//! may have ended, and its files may have been replaced.
//!
//! A log names a file by device, inode and path. A later file can have the same: some file systems use the
//! inode number of a deleted file for the next one. So a file counts as the one that was mapped only if it
//! existed before, and was not written to since. If it is the same, but its times do not prove it, its table
//! is missing; a wrong table is never used.

use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::OFlag;

use super::files::maps_of;
use super::foreign::{LastLink, open_exactly, open_in_root, open_path};
use super::mappings::{CodeMapping, Found, MappedCode, SeenFiles, find_of, is_ambiguous, place};
use super::maps::{MapsEntry, MapsName};
use super::modules::{ModuleId, Modules, Opened, Unreadable, cannot_open, without_deleted};
use super::moment::Moment;
use super::placement::Others;

/// Root directory of a process. Usable after the process's end.
#[derive(Debug)]
pub struct ProcessRoot(OwnedFd);

impl ProcessRoot {
    /// The root of process `pid`.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    pub fn of(pid: u32) -> io::Result<Self> {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        open_path(&root, OFlag::O_DIRECTORY).map(Self)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl Modules {
    /// Finds the code that process `pid` mapped when it made the mapping `entry`, at `mapped`: nanoseconds of
    /// the kernel's `CLOCK_MONOTONIC`.
    ///
    /// A file that was seen before is not opened again. Others are opened if they are still mapped there, or
    /// are at their path in the process's root, or in `root`, its former root if the process has ended. The
    /// result is [`Unreadable::Gone`] if there is no such file, and [`Unreadable::Changed`] if it may be
    /// another one.
    pub fn of_past(
        &mut self,
        pid: u32,
        root: Option<&ProcessRoot>,
        entry: &MapsEntry,
        mapped: u64,
    ) -> CodeMapping {
        let find = |entry: &MapsEntry| match &entry.name {
            MapsName::Special(_) => self.past_vdso(pid, entry),
            MapsName::File { .. } | MapsName::Anonymous => {
                self.past_file(pid, root, entry, Moment::from_monotonic(mapped))
            }
        };
        CodeMapping {
            range: entry.range.clone(),
            code: match find_of(entry, find) {
                Found::Code(code) => code,
                Found::Module(module) => self.past_place(pid, entry, module),
            },
        }
    }

    /// Code of a past mapping of a module. Uses the module's other mappings if this one is still there.
    fn past_place(&self, pid: u32, entry: &MapsEntry, module: ModuleId) -> MappedCode {
        let code = place(entry, module, self, Others::Unseen);
        if !is_ambiguous(&code) {
            return code;
        }
        let maps = maps_of(pid).unwrap_or_default();
        let identity = |entry: &MapsEntry| (entry.device, entry.inode, entry.offset, entry.range.clone());
        if maps.iter().any(|now| identity(now) == identity(entry)) {
            let code = SeenFiles::of(&maps).place(entry, module, self);
            if !is_ambiguous(&code) {
                return code;
            }
        }
        place(entry, module, self, Others::Unknown)
    }

    fn past_file(
        &mut self,
        pid: u32,
        root: Option<&ProcessRoot>,
        entry: &MapsEntry,
        moment: Moment,
    ) -> Result<ModuleId, Unreadable> {
        let module = self.of_file_mapping(entry, |path| open_past(pid, root, entry, path, moment))?;
        let is_same = self.get(module).is_some_and(|module| module.is_of(&moment));
        is_same.then_some(module).ok_or(Unreadable::Changed)
    }

    /// Finds the vDSO, if it is still there: its content is only in memory.
    fn past_vdso(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        let maps = maps_of(pid).map_err(|_| Unreadable::Gone)?;
        let is_it = |now: &MapsEntry| now.range == entry.range && now.name == entry.name;
        if !maps.iter().any(is_it) {
            return Err(Unreadable::Gone);
        }
        self.vdso(pid, entry)
    }
}

/// Opens the file of a past mapping: the file that is mapped there now, or the one at its path now, if either
/// is the same.
fn open_past(
    pid: u32,
    root: Option<&ProcessRoot>,
    entry: &MapsEntry,
    path: &Path,
    moment: Moment,
) -> Result<Opened, Unreadable> {
    let own_root = PathBuf::from(format!("/proc/{pid}/root"));
    let in_root = |root: &Path| by_path(root, entry, path);
    let file = mapped_now(pid, entry, path)
        .map_or_else(|| in_root(&own_root), Ok)
        .or_else(|error| root.map_or(Err(error), |root| in_root(&root.path())))?;
    let metadata = file.metadata().map_err(|error| cannot_open(&error))?;
    if !moment.is_before(&metadata) {
        return Err(Unreadable::Changed);
    }
    Ok(Opened {
        file,
        device_unconfirmed: false,
    })
}

/// The file that is mapped there now, if it has the inode number and either the device or the path: some file
/// systems have one device for `stat` and another for mappings.
fn mapped_now(pid: u32, entry: &MapsEntry, path: &Path) -> Option<File> {
    let (start, end) = (entry.range.start, entry.range.end);
    let file = open_exactly(Path::new(&format!("/proc/{pid}/map_files/{start:x}-{end:x}"))).ok()?;
    let metadata = file.metadata().ok()?;
    let own_path = || fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let has_path = || own_path().is_ok_and(|own| without_deleted(&own) == path.as_os_str().as_bytes());
    let is_same = metadata.ino() == entry.inode && (device_of(&metadata) == entry.device || has_path());
    is_same.then_some(file)
}

/// The file that has the path in a root now, if it has the device and the inode number.
fn by_path(root: &Path, entry: &MapsEntry, path: &Path) -> Result<File, Unreadable> {
    // No size limit: the file was mapped already.
    let found = open_in_root(root, path, LastLink::Follow, u64::MAX);
    let absent = Unreadable::CannotOpen(io::ErrorKind::NotFound);
    let file = found
        .map_err(Unreadable::from)
        .map_err(|error| if error == absent { Unreadable::Gone } else { error })?;
    let metadata = file.file.metadata().map_err(|error| cannot_open(&error))?;
    let is_same = (device_of(&metadata), metadata.ino()) == (entry.device, entry.inode);
    is_same.then_some(file.file).ok_or(Unreadable::Gone)
}

/// Major and minor number of a file's device.
fn device_of(metadata: &Metadata) -> (u32, u32) {
    (libc::major(metadata.dev()), libc::minor(metadata.dev()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use memleak_base::kernel_clock::monotonic_nanoseconds;

    const LIBRARY: &str = "libmemleak-past.so";

    /// A library that this process has loaded from its own copy of a file, which is deleted with this value.
    struct Own {
        directory: tempfile::TempDir,
        library: Option<libloading::Library>,
    }

    /// Waits for longer than a tick of the clock of file times.
    fn wait() {
        std::thread::sleep(Duration::from_millis(30));
    }

    /// A small library of the system's that nothing of ours needs.
    fn system_library() -> PathBuf {
        let maps = fs::read_to_string("/proc/self/maps").expect("our own");
        let libc = maps.lines().find(|line| line.ends_with("/libc.so.6"));
        let libc = libc.and_then(|line| line.split_ascii_whitespace().last());
        Path::new(libc.expect("libc is loaded")).with_file_name("libutil.so.1")
    }

    impl Own {
        /// Makes the library, waits until its times are before now, and loads it.
        fn load() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            fs::copy(system_library(), directory.path().join(LIBRARY)).expect("a library");
            let mut own = Self {
                directory,
                library: None,
            };
            wait();
            own.load_again();
            own
        }

        fn load_again(&mut self) {
            // SAFETY: a library of the system's, whose initialization does nothing.
            #[allow(unsafe_code, reason = "loads a library, as the traced do")]
            let library = unsafe { libloading::Library::new(self.path()) };
            self.library = Some(library.expect("it can be loaded"));
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join(LIBRARY)
        }

        /// The executable entry of the maps.
        fn entry(&self) -> MapsEntry {
            self.find_entry().expect("it is loaded")
        }

        fn find_entry(&self) -> Option<MapsEntry> {
            let maps = maps_of(std::process::id()).expect("our own");
            let path = self.path();
            let is_it = |entry: &MapsEntry| {
                let name = &entry.name;
                entry.executable && matches!(name, MapsName::File { path: other, .. } if *other == path)
            };
            maps.into_iter().find(is_it)
        }
    }

    /// Returns the module that was found, or why there is none.
    fn module(mapping: CodeMapping) -> Result<ModuleId, Unreadable> {
        match mapping.code {
            MappedCode::Module { module, .. } => Ok(module),
            MappedCode::Unreadable { why, .. } => Err(why),
            other @ (MappedCode::Generated { .. } | MappedCode::Trampoline) => panic!("{other:?}"),
        }
    }

    /// A mapping that is still there, the vDSO's too, resolves as when the maps are read, and reading them
    /// adds no module.
    #[test]
    fn still_mapped() {
        let pid = std::process::id();
        let target = super::super::Target::open(pid).expect("we run");
        let own = Own::load();
        let now = monotonic_nanoseconds();
        let mut first = Modules::new();
        let maps = maps_of(pid).expect("our own");
        let code: Vec<_> = maps.into_iter().filter(|entry| entry.executable).collect();
        let past: Vec<_> = code
            .iter()
            .map(|entry| first.of_past(pid, None, entry, now))
            .collect();
        let count = first.iter().count();
        let mappings = target.read_mappings(&mut first).expect("we run");
        assert_eq!(first.iter().count(), count);
        let of_own = own.entry();
        let vdso = code
            .iter()
            .find(|entry| entry.name == MapsName::Special("[vdso]".to_owned()));
        for entry in [&of_own, vdso.expect("it is mapped")] {
            let past = past.iter().find(|past| past.range == entry.range);
            assert_eq!(past, mappings.find(entry.range.start));
            assert!(module(past.expect("listed").clone()).is_ok(), "{past:?}");
        }
    }

    /// An unmapped file is opened by its path; after its deletion, it is known if it was seen before, and
    /// gone otherwise.
    #[test]
    fn unmapped() {
        let pid = std::process::id();
        let mut own = Own::load();
        let (entry, mapped) = (own.entry(), monotonic_nanoseconds());
        own.library = None;
        assert_eq!(own.find_entry(), None);
        let mut seen = Modules::new();
        let by_path = module(seen.of_past(pid, None, &entry, mapped));
        assert!(by_path.is_ok(), "{by_path:?}");
        fs::remove_file(own.path()).expect("ours");
        assert_eq!(module(seen.of_past(pid, None, &entry, mapped)), by_path);
        assert_eq!(
            module(Modules::new().of_past(pid, None, &entry, mapped)),
            Err(Unreadable::Gone)
        );
        // Nor does another file at its path pass for it.
        fs::copy(system_library(), own.path()).expect("a library");
        assert!(module(Modules::new().of_past(pid, None, &entry, mapped)).is_err());
    }

    /// A file that was made, or written to, after the mapping is not taken for the mapped one.
    #[test]
    fn made_or_written_later() {
        let pid = std::process::id();
        let mut own = Own::load();
        let (entry, mapped) = (own.entry(), monotonic_nanoseconds());
        let mut modules = Modules::new();
        assert!(module(modules.of_past(pid, None, &entry, mapped)).is_ok());
        // As if it had been mapped before the file was made.
        let before = mapped - 10_000_000_000;
        for modules in [&mut modules, &mut Modules::new()] {
            assert_eq!(
                module(modules.of_past(pid, None, &entry, before)),
                Err(Unreadable::Changed)
            );
        }
        own.library = None;
        let content = fs::read(own.path()).expect("ours");
        wait();
        fs::write(own.path(), content).expect("the same file");
        for modules in [&mut modules, &mut Modules::new()] {
            assert_eq!(
                module(modules.of_past(pid, None, &entry, mapped)),
                Err(Unreadable::Changed)
            );
        }
        wait();
        own.load_again();
        let again = (own.entry(), monotonic_nanoseconds());
        // The module's bytes may be those from its opening, or the new ones.
        assert_eq!(
            module(modules.of_past(pid, None, &again.0, again.1)),
            Err(Unreadable::Changed)
        );
        assert!(module(Modules::new().of_past(pid, None, &again.0, again.1)).is_ok());
    }

    /// Files of a process that has ended are known if they were seen before, or are found by its root, and
    /// all else is gone.
    #[test]
    fn ended_process() {
        let own = Own::load();
        let (entry, mapped) = (own.entry(), monotonic_nanoseconds());
        let vdso = MapsEntry {
            name: MapsName::Special("[vdso]".to_owned()),
            ..entry.clone()
        };
        let mut seen = Modules::new();
        let known = module(seen.of_past(std::process::id(), None, &entry, mapped));
        assert!(known.is_ok(), "{known:?}");
        // Above the kernel's maximum pid, 2^22.
        let ended = u32::MAX;
        assert_eq!(module(seen.of_past(ended, None, &entry, mapped)), known);
        let mut new = Modules::new();
        assert_eq!(
            module(new.of_past(ended, None, &entry, mapped)),
            Err(Unreadable::Gone)
        );
        // By the root that it had, which is ours.
        let root = ProcessRoot::of(std::process::id()).expect("we run");
        let by_root = module(new.of_past(ended, Some(&root), &entry, mapped));
        assert!(by_root.is_ok(), "{by_root:?}");
        assert_eq!(
            module(new.of_past(ended, None, &vdso, mapped)),
            Err(Unreadable::Gone)
        );
        // The mapping at these addresses is not the vDSO.
        assert_eq!(
            module(new.of_past(std::process::id(), None, &vdso, mapped)),
            Err(Unreadable::Gone)
        );
    }
}
