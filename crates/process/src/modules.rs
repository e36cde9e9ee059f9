//! The ELF files that processes have mapped: opened once, kept open, identified by a [`ModuleId`].
//!
//! A module is one file (device and inode), not one path: a library that was replaced on disk while running
//! is another module than its successor, and a probe goes to the inode. Two copies of one file are two
//! modules with equal build-ids; sharing their unwind table is left to the code that stores the tables. Of an
//! ELF file, only headers and the dynamic segment are parsed here.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use memchr::memmem;
use object::elf;
use thiserror::Error;
use unwind_tables::elf::{ElfView, Segment};
use unwind_tables::error::TableError;
use unwind_tables::fingerprint::{Fingerprint, fingerprint};

use super::dynamic::Dynamic;
use super::files::maps_of;
use super::foreign::{LastLink, OpenError, is_on_fuse, open_exactly, open_in_root};
use super::from_memory;
use super::linking::Linking;
use super::mapped_file::MappedFile;
use super::maps::{MapsEntry, MapsName};
use super::moment::Moment;
use super::process_memory::ProcessMemory;
use memleak_base::open_files;

/// Identifies a module within one [`Modules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(u32);

impl ModuleId {
    /// The module at a position in [`Modules::iter`].
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Position in [`Modules::iter`].
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// GNU build-id, displayed as lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// The raw bytes, usually 20.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An ELF file that a process has mapped, or its vDSO.
#[derive(Debug)]
pub struct Module {
    pub id: ModuleId,
    /// Path as the target sees it, without ` (deleted)`; `[vdso]` for the vDSO.
    pub path: PathBuf,
    pub build_id: Option<BuildId>,
    /// Set if the file was recognised by its inode number alone.
    ///
    /// On btrfs and overlayfs, `/proc/PID/maps` names another device than `stat` does. Only set if
    /// `map_files`, which identifies the file exactly, could not be used.
    pub device_unconfirmed: bool,
    /// Distinguishes it from every other object in a process's memory.
    pub fingerprint: Option<Fingerprint>,
    content: Content,
    segments: Vec<Segment>,
    is_fixed: bool,
    linking: Linking,
}

#[derive(Debug)]
enum Content {
    File {
        file: File,
        bytes: MappedFile,
        /// Time of the last write to its content, as of its opening.
        written: Option<SystemTime>,
    },
    Vdso(Vec<u8>),
    /// Loaded parts of a file that cannot be opened.
    Memory(Vec<u8>),
}

impl Module {
    /// Bytes of the ELF file: untrusted, and memory-mapped unless they are a process's memory, which has no
    /// sections.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::File { bytes, .. } => bytes.bytes(),
            Content::Vdso(bytes) | Content::Memory(bytes) => bytes,
        }
    }

    /// Releases the memory of the mapped file. Later reads get the bytes from the file again.
    pub fn release(&self) {
        if let Content::File { bytes, .. } = &self.content {
            bytes.release();
        }
    }

    /// True if the file was truncated while it was mapped here: some of its bytes were read as zeros.
    pub fn is_cut(&self) -> bool {
        match &self.content {
            Content::File { bytes, .. } => bytes.is_cut(),
            Content::Vdso(_) | Content::Memory(_) => false,
        }
    }

    /// Path under which memleak can open the same inode, for attaching probes.
    ///
    /// Valid while the module lives. `None` for the vDSO, which has no file to probe, and for a file that
    /// cannot be opened.
    pub fn probe_path(&self) -> Option<PathBuf> {
        match &self.content {
            Content::File { file, .. } => Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))),
            Content::Vdso(_) | Content::Memory(_) => None,
        }
    }

    /// True for the kernel's vDSO, copied out of a target.
    pub fn is_vdso(&self) -> bool {
        matches!(self.content, Content::Vdso(_))
    }

    /// Returns true if its file is the one that was mapped at a past moment.
    pub(super) fn is_of(&self, moment: &Moment) -> bool {
        match &self.content {
            Content::File { file, written, .. } => file
                .metadata()
                .is_ok_and(|metadata| moment.is_before(&metadata) && metadata.modified().ok() == *written),
            Content::Vdso(_) => true,
            // The copy may be older than what is loaded.
            Content::Memory(_) => false,
        }
    }

    /// Its name, and the names of the objects it needs.
    pub(super) fn linking(&self) -> &Linking {
        &self.linking
    }

    /// True if it is named as glibc is.
    pub fn is_glibc(&self) -> bool {
        let name = self.linking.soname.as_deref();
        name.is_some_and(|name| name.starts_with(b"libc.so."))
    }

    /// True if it is named as the loader of glibc is.
    pub fn is_glibc_loader(&self) -> bool {
        let name = self.linking.soname.as_deref();
        name.is_some_and(|name| name.starts_with(b"ld-linux"))
    }

    /// True for a file that can be executed and loads others, as a loader is: it needs no loader, and has a
    /// name by which objects need it.
    pub(super) fn is_loader(&self) -> bool {
        let Linking {
            soname, interpreter, ..
        } = &self.linking;
        soname.is_some() && interpreter.is_none() && !self.is_static_program()
    }

    /// Returns true if it may call `malloc_usable_size`, to use more of a block than it has requested. glibc
    /// has that function, but does not call it.
    pub fn asks_usable_size(&self) -> bool {
        let names = || Dynamic::of(self.bytes())?.table(elf::DT_STRTAB);
        let asks = |names| memmem::find(names, b"malloc_usable_size\0").is_some();
        self.is_static_program() || !self.is_glibc() && names().is_some_and(asks)
    }

    /// True for a statically linked program: it has no loader and needs no other object.
    pub fn is_static_program(&self) -> bool {
        self.linking.is_static_program
    }

    /// Its executable `PT_LOAD` segments.
    pub fn code(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.executable)
    }

    /// True if it is mapped at the addresses that it states (`ET_EXEC`).
    pub(super) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Its `PT_LOAD` segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// Opening or mapping the file failed.
    #[error("cannot open it: {0}")]
    CannotOpen(io::ErrorKind),
    #[error("no permission to read it: needs its user's rights or CAP_DAC_READ_SEARCH; try sudo")]
    NoPermission,
    /// File on a user's FUSE mount, which not even root may open, and whose loaded parts cannot be used.
    #[error(
        "it is on another user's FUSE mount, which must be mounted with -o allow_root or allow_other to be \
         readable; the parts that the process has loaded cannot be used: {0}"
    )]
    Fuse(io::ErrorKind),
    /// The path leads to another file than the mapped one, and `map_files` is not permitted.
    #[error(
        "the file was replaced or deleted; opening the mapped one needs CAP_CHECKPOINT_RESTORE, and CAP_DAC_READ_SEARCH if \
         the process is another user's; try sudo"
    )]
    Replaced,
    /// Unmapped after the maps were read, and its path leads to another file.
    #[error("it was unmapped before it could be opened")]
    Gone,
    /// File of a past mapping that may not be the one that was mapped, or may have other content now.
    #[error("the file was created or written to after it was mapped")]
    Changed,
    /// A device, a file generated by the kernel or similar, which is not opened because that may have
    /// effects.
    #[error("it is not a regular file")]
    NotRegular,
    #[error(transparent)]
    NotElf(Arc<TableError>),
    #[error("no segment of the file belongs there")]
    NoSegment,
    #[error("two segments of the file fit there, and its other mappings do not decide between them")]
    Ambiguous,
    /// Each module's file stays open, which uses a file descriptor.
    #[error("{0} code files are kept open already, which is the maximum: raise it with ulimit -n")]
    TooMany(usize),
    /// `[vsyscall]`: a fixed kernel page that is listed as a mapping.
    #[error("it is a kernel page")]
    KernelPage,
}

impl Unreadable {
    /// True if a later reading of the mappings can find the file.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Gone | Self::Changed)
    }
}

impl From<OpenError> for Unreadable {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotRegular => Self::NotRegular,
            OpenError::System(error) => cannot_open(&error),
        }
    }
}

/// Key of a file in `/proc/PID/maps` (device, inode, path), so that each is opened once.
type Seen = ((u32, u32), u64, PathBuf);

/// All modules seen so far, of one or several targets.
#[derive(Debug, Default)]
pub struct Modules {
    modules: Vec<Arc<Module>>,
    seen: HashMap<Seen, ModuleId>,
    // Device and inode as in `stat`. Every module's file stays open, so that an inode number is not reused.
    by_file: HashMap<(u64, u64), ModuleId>,
}

pub(super) struct Opened {
    pub(super) file: File,
    pub(super) device_unconfirmed: bool,
}

/// Maximum number of open files, whatever the limit: a program of a thousand plugins has less than a tenth of
/// it.
const MAX_FILES: usize = 1 << 14;
/// Maximum number of names that are remembered.
const MAX_NAMES: usize = 1 << 16;

/// Maximum number of files to keep open: half of the limit, as probes and everything else need some, too.
fn most_files() -> usize {
    usize::try_from(open_files::limit() / 2)
        .unwrap_or(usize::MAX)
        .min(MAX_FILES)
}

/// Maximum size of a vDSO, which has two pages of code on x86-64.
const MAX_VDSO_BYTES: u64 = 1 << 20;

impl Modules {
    pub fn new() -> Self {
        Self::default()
    }

    /// The module with this ID; `None` only for an ID of another `Modules`.
    pub fn get(&self, id: ModuleId) -> Option<&Module> {
        self.modules.get(usize::try_from(id.0).ok()?).map(Arc::as_ref)
    }

    /// As [`Modules::get`], for another thread.
    pub(super) fn shared(&self, id: ModuleId) -> Option<Arc<Module>> {
        self.modules.get(usize::try_from(id.0).ok()?).cloned()
    }

    /// All modules, oldest first, whether or not they are still mapped.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().map(Arc::as_ref)
    }

    /// Releases the memory of all modules' files.
    pub fn release(&self) {
        self.iter().for_each(Module::release);
    }

    /// Adds a file, by its path in memleak's own view. On an error, nothing is added.
    pub fn add_file(&mut self, path: &Path) -> Result<ModuleId, Unreadable> {
        let opened = Opened {
            file: open_exactly(path)?,
            device_unconfirmed: false,
        };
        self.insert_file(opened, path)
    }

    /// The module of a file that was added, by its device and inode number as in `stat`.
    pub(super) fn of_file(&self, file: (u64, u64)) -> Option<ModuleId> {
        self.by_file.get(&file).copied()
    }

    /// The module behind a mapping of process `pid`, which is of a file or the vDSO.
    pub(super) fn of_entry(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        match &entry.name {
            MapsName::Special(_) => self.vdso(pid, entry),
            MapsName::File { .. } | MapsName::Anonymous => self.of_mapping(pid, entry),
        }
    }

    /// The module behind a file mapping of process `pid`.
    pub(super) fn of_mapping(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        let found = self.of_file_mapping(entry, |path| open_mapped(pid, entry, path));
        match found {
            Err(Unreadable::NoPermission) if is_on_fuse(&map_file(pid, entry)) => self.of_memory(pid, entry),
            found => found,
        }
    }

    /// The module of a file that cannot be opened, as process `pid` has it in its memory.
    fn of_memory(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        let MapsName::File { path, .. } = &entry.name else {
            return Err(Unreadable::NotRegular);
        };
        let memory = ProcessMemory::open(pid);
        let bytes = memory.and_then(|memory| from_memory::read(&memory, &maps_of(pid)?, entry));
        let bytes = bytes.map_err(|error| Unreadable::Fuse(error.kind()))?;
        let module = self.insert(path, Content::Memory(bytes), false)?;
        self.remember(entry, path, module);
        Ok(module)
    }

    /// The module of a file at `path` that cannot be opened.
    pub(super) fn in_memory(&self, path: &Path) -> Option<ModuleId> {
        let is_it = |module: &&Module| matches!(module.content, Content::Memory(_)) && module.path == path;
        self.iter().find(is_it).map(|module| module.id)
    }

    /// The module behind a file mapping, whose file `open` opens if it was not seen before.
    pub(super) fn of_file_mapping(
        &mut self,
        entry: &MapsEntry,
        open: impl FnOnce(&Path) -> Result<Opened, Unreadable>,
    ) -> Result<ModuleId, Unreadable> {
        let MapsName::File { path, .. } = &entry.name else {
            return Err(Unreadable::NotRegular);
        };
        let key = (entry.device, entry.inode, path.clone());
        if let Some(known) = self.seen.get(&key) {
            return Ok(*known);
        }
        let module = open(path).and_then(|opened| self.insert_file(opened, path))?;
        self.remember(entry, path, module);
        Ok(module)
    }

    /// Remembers the module of mapping `entry`, which is of the file at `path`.
    fn remember(&mut self, entry: &MapsEntry, path: &Path, module: ModuleId) {
        // A file can have any number of names, one after another: start over when there are too many.
        if self.seen.len() == MAX_NAMES {
            self.seen.clear();
        }
        // Only successes are remembered: a failure can mean that the mapping has just been removed.
        let key = (entry.device, entry.inode, path.to_owned());
        self.seen.insert(key, module);
    }

    /// The vDSO of process `pid`. All processes of one kernel share one or two.
    pub(super) fn vdso(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        let bytes = read_memory(pid, entry).map_err(|error| cannot_open(&error))?;
        let same = |module: &&Module| module.is_vdso() && module.bytes() == bytes;
        if let Some(known) = self.iter().find(same) {
            return Ok(known.id);
        }
        self.insert(Path::new("[vdso]"), Content::Vdso(bytes), false)
    }

    fn insert_file(&mut self, opened: Opened, path: &Path) -> Result<ModuleId, Unreadable> {
        let Opened {
            file,
            device_unconfirmed,
        } = opened;
        let metadata = file.metadata().map_err(|error| cannot_open(&error))?;
        let inode = (metadata.dev(), metadata.ino());
        if let Some(&known) = self.by_file.get(&inode) {
            return Ok(known);
        }
        if self.by_file.len() >= most_files() {
            return Err(Unreadable::TooMany(self.by_file.len()));
        }
        let bytes = MappedFile::map(&file).map_err(|error| cannot_open(&error))?;
        let written = metadata.modified().ok();
        let content = Content::File { file, bytes, written };
        let id = self.insert(path, content, device_unconfirmed)?;
        self.by_file.insert(inode, id);
        Ok(id)
    }

    fn insert(
        &mut self,
        path: &Path,
        content: Content,
        device_unconfirmed: bool,
    ) -> Result<ModuleId, Unreadable> {
        let bytes = match &content {
            Content::File { bytes, .. } => bytes.bytes(),
            Content::Vdso(bytes) | Content::Memory(bytes) => bytes,
        };
        let elf = ElfView::parse(bytes).map_err(|error| Unreadable::NotElf(Arc::new(error)))?;
        let (segments, is_fixed) = (elf.segments().to_vec(), elf.is_fixed());
        let build_id = elf.build_id().map(|id| BuildId(id.to_vec()));
        let fingerprint = fingerprint(&elf);
        let linking = Linking::read(bytes);
        // A process has at most 2^31 mappings, each at most one module.
        let id = ModuleId(u32::try_from(self.modules.len()).map_err(|_| Unreadable::NoSegment)?);
        self.modules.push(Arc::new(Module {
            id,
            path: path.to_owned(),
            build_id,
            device_unconfirmed,
            fingerprint,
            content,
            segments,
            is_fixed,
            linking,
        }));
        Ok(id)
    }
}

/// Link to exactly the file of a mapping.
fn map_file(pid: u32, entry: &MapsEntry) -> PathBuf {
    let (start, end) = (entry.range.start, entry.range.end);
    PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
}

/// Opens the file behind a mapping: the same inode if permitted, else the file that its path leads to.
fn open_mapped(pid: u32, entry: &MapsEntry, path: &Path) -> Result<Opened, Unreadable> {
    let absent = Unreadable::CannotOpen(io::ErrorKind::NotFound);
    let gone = match open_exactly(&map_file(pid, entry)).map_err(Unreadable::from) {
        Ok(file) if is_still(entry, path, &file) => {
            return Ok(Opened {
                file,
                device_unconfirmed: false,
            });
        }
        // Another file is mapped at these addresses by now.
        Ok(_) => true,
        Err(Unreadable::NotRegular) => return Err(Unreadable::NotRegular),
        // Not permitted, or unmapped since the maps were read.
        Err(error) => error == absent,
    };
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    // No size limit: the file is mapped already.
    let found = open_in_root(&root, path, LastLink::Follow, u64::MAX);
    let found = found.map_err(Unreadable::from).map_err(|error| {
        if gone {
            Unreadable::Gone
        } else if error == absent {
            Unreadable::Replaced
        } else {
            error
        }
    })?;
    let metadata = found.file.metadata().map_err(|error| cannot_open(&error))?;
    if metadata.ino() != entry.inode {
        return Err(if gone {
            Unreadable::Gone
        } else {
            Unreadable::Replaced
        });
    }
    let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    Ok(Opened {
        file: found.file,
        device_unconfirmed: device != entry.device,
    })
}

/// Returns whether the file that is mapped now is the one that the maps named.
///
/// Some file systems have one inode number for `stat` and another for maps; for these, paths are compared.
fn is_still(entry: &MapsEntry, path: &Path, file: &File) -> bool {
    let same_inode = file
        .metadata()
        .is_ok_and(|metadata| metadata.ino() == entry.inode);
    let opened_path = || fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    same_inode || without_deleted(&opened_path()) == path.as_os_str().as_bytes()
}

/// Path as the kernel writes it, without its mark of deleted files.
pub(super) fn without_deleted(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)
}

pub(super) fn cannot_open(error: &io::Error) -> Unreadable {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Unreadable::NoPermission;
    }
    Unreadable::CannotOpen(error.kind())
}

/// Bytes of a mapping, read from the process's memory; at most [`MAX_VDSO_BYTES`].
fn read_memory(pid: u32, entry: &MapsEntry) -> io::Result<Vec<u8>> {
    let length = entry.range.end.offset_from(entry.range.start);
    let length = usize::try_from(length.min(MAX_VDSO_BYTES)).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    ProcessMemory::open(pid)?.read_exact_at(&mut bytes, entry.range.start)?;
    Ok(bytes)
}
