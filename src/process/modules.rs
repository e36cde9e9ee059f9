//! The ELF files that processes have mapped: opened once, kept open, known by a [`ModuleId`].
//!
//! A module is one file (device and inode), not one path: a library that was replaced on disk while
//! running is another module than its successor, and a probe goes to the inode. Two copies of one
//! file are two modules with equal build-ids; that they share an unwind table is for the holder of
//! the tables to see. Nothing of an ELF file is interpreted here but its headers.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use thiserror::Error;
use unwind_tables::elf::{ElfView, Segment};
use unwind_tables::error::TableError;
use unwind_tables::fingerprint::{Fingerprint, fingerprint};

use super::foreign::{LastLink, OpenError, open_exactly, open_in_root};
use super::linking::Linking;
use super::mapped_file::MappedFile;
use super::maps::{MapsEntry, MapsName};
use super::process_memory::ProcessMemory;

/// Names a module within one [`Modules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(u32);

impl ModuleId {
    /// The name with this number.
    #[cfg(test)]
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The position in [`Modules::iter`].
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// A GNU build-id, shown as lower-case hexadecimal digits.
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
    /// Its name within its [`Modules`].
    pub id: ModuleId,
    /// The path as the target sees it, without ` (deleted)`; `[vdso]` for the vDSO.
    pub path: PathBuf,
    /// The GNU build-id, if the file has one.
    pub build_id: Option<BuildId>,
    /// Whether the file was recognised by its inode number alone.
    ///
    /// On btrfs and overlayfs `/proc/PID/maps` names another device than `stat` does. It is so only
    /// where `map_files` could not be used, which leaves no such doubt.
    pub device_unconfirmed: bool,
    /// What tells it from every other object in a process's memory.
    pub fingerprint: Option<Fingerprint>,
    content: Content,
    segments: Vec<Segment>,
    linking: Linking,
}

#[derive(Debug)]
enum Content {
    File { file: File, bytes: MappedFile },
    Vdso(Vec<u8>),
}

impl Module {
    /// The ELF file's bytes: untrusted, and for a file memory-mapped.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::File { bytes, .. } => bytes.bytes(),
            Content::Vdso(bytes) => bytes,
        }
    }

    /// Gives back the memory that holds what was read of its file. What is read later is read from the file again.
    pub fn release(&self) {
        if let Content::File { bytes, .. } = &self.content {
            bytes.release();
        }
    }

    /// Whether its file has become shorter while it was mapped here: some of its bytes were read as zeros.
    pub fn is_cut(&self) -> bool {
        match &self.content {
            Content::File { bytes, .. } => bytes.is_cut(),
            Content::Vdso(_) => false,
        }
    }

    /// A path under which this process reaches the very inode, for attaching probes.
    ///
    /// Valid while the module lives. `None` for the vDSO, which has no file to probe.
    pub fn probe_path(&self) -> Option<PathBuf> {
        match &self.content {
            Content::File { file, .. } => Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))),
            Content::Vdso(_) => None,
        }
    }

    /// Whether this is the kernel's vDSO, copied out of a target.
    pub fn is_vdso(&self) -> bool {
        matches!(self.content, Content::Vdso(_))
    }

    /// Its name, and those of the objects it needs.
    pub(super) fn linking(&self) -> &Linking {
        &self.linking
    }

    /// True for a program that was linked statically: it has no loader and needs no other object.
    pub fn is_static_program(&self) -> bool {
        self.linking.is_static_program
    }

    /// Its `PT_LOAD` segments that have code.
    pub fn code(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.executable)
    }

    /// Its `PT_LOAD` segments.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

/// Why the code behind a mapping cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// Opening or mapping the file failed.
    #[error("cannot open it: {0}")]
    CannotOpen(io::ErrorKind),
    /// The file's mode keeps it from us.
    #[error("no permission to read it, which its user's rights or CAP_DAC_READ_SEARCH give; try sudo")]
    NoPermission,
    /// The path leads to another file than the mapped one, and `map_files` may not be used.
    #[error(
        "the file was replaced or deleted; opening the mapped one needs CAP_CHECKPOINT_RESTORE, and CAP_DAC_READ_SEARCH if \
         the process is another user's; try sudo"
    )]
    Replaced,
    /// It was unmapped after the maps were read, and its path leads elsewhere.
    #[error("it was unmapped before it could be opened")]
    Gone,
    /// A device, a file that the kernel makes up or the like, which is not opened because that may have effects.
    #[error("it is not a regular file")]
    NotRegular,
    /// The file is not an ELF file that can be used here.
    #[error(transparent)]
    NotElf(Arc<TableError>),
    /// No segment of the file is mapped there.
    #[error("no segment of the file belongs there")]
    NoSegment,
    /// There are too many other files, each of which stays open.
    #[error("{0} other files were mapped as code before, more than are kept open: ulimit -n allows more")]
    TooMany(usize),
    /// `[vsyscall]`: a fixed kernel page that only looks mapped.
    #[error("it is a page of the kernel's")]
    KernelPage,
}

impl From<OpenError> for Unreadable {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotRegular => Self::NotRegular,
            OpenError::System(error) => cannot_open(&error),
        }
    }
}

/// What `/proc/PID/maps` says of a file, so that each is opened once.
type Seen = ((u32, u32), u64, PathBuf);

/// All modules seen so far, of one target or several.
#[derive(Debug, Default)]
pub struct Modules {
    modules: Vec<Module>,
    seen: HashMap<Seen, ModuleId>,
    // As `stat` names them. Every module's file stays open, so that no inode number is reused.
    by_file: HashMap<(u64, u64), ModuleId>,
}

/// An opened regular file.
struct Opened {
    file: File,
    device_unconfirmed: bool,
}

/// Files that are kept open at most, whatever else may be: a program of a thousand plugins has not a tenth of it.
const MAX_FILES: usize = 1 << 14;
/// Names that are remembered at most.
const MAX_NAMES: usize = 1 << 16;

/// Files that are kept open, of those that may be: probes and everything else need some, too.
fn most_files() -> usize {
    let allowed = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(allowed / 2).unwrap_or(usize::MAX).min(MAX_FILES)
}

/// No vDSO is larger: it is two pages of code on x86-64.
const MAX_VDSO_BYTES: u64 = 1 << 20;

impl Modules {
    /// No modules yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The module of that name.
    ///
    /// `None` only for a name that another `Modules` gave out.
    pub fn get(&self, id: ModuleId) -> Option<&Module> {
        self.modules.get(usize::try_from(id.0).ok()?)
    }

    /// All modules, oldest first, whether or not anything still maps them.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter()
    }

    /// Releases all of them.
    pub fn release(&self) {
        self.modules.iter().for_each(Module::release);
    }

    /// The module of a file in our own view of the file system.
    ///
    /// # Errors
    ///
    /// [`Unreadable`]; nothing was added.
    pub fn add_file(&mut self, path: &Path) -> Result<ModuleId, Unreadable> {
        let opened = Opened {
            file: open_exactly(path)?,
            device_unconfirmed: false,
        };
        self.insert_file(opened, path)
    }

    /// The module of a file that was added, by its device and inode number as `stat` names them.
    pub(super) fn of_file(&self, file: (u64, u64)) -> Option<ModuleId> {
        self.by_file.get(&file).copied()
    }

    /// The module behind a file mapping of process `pid`.
    pub(super) fn of_mapping(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        let MapsName::File { path, .. } = &entry.name else {
            return Err(Unreadable::NotRegular);
        };
        let key = (entry.device, entry.inode, path.clone());
        if let Some(known) = self.seen.get(&key) {
            return Ok(*known);
        }
        let module = open_mapped(pid, entry, path).and_then(|opened| self.insert_file(opened, path))?;
        // A file can have any number of names, one after another.
        if self.seen.len() == MAX_NAMES {
            self.seen.clear();
        }
        // A failure is not kept: it can be that the mapping has just gone.
        self.seen.insert(key, module);
        Ok(module)
    }

    /// The vDSO of process `pid`. All processes of one kernel share one or two.
    pub(super) fn vdso(&mut self, pid: u32, entry: &MapsEntry) -> Result<ModuleId, Unreadable> {
        let bytes = read_memory(pid, entry).map_err(|error| cannot_open(&error))?;
        let same = |module: &&Module| module.is_vdso() && module.bytes() == bytes;
        if let Some(known) = self.modules.iter().find(same) {
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
        let id = self.insert(path, Content::File { file, bytes }, device_unconfirmed)?;
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
            Content::Vdso(bytes) => bytes,
        };
        let elf = ElfView::parse(bytes).map_err(|error| Unreadable::NotElf(Arc::new(error)))?;
        let segments = elf.segments().to_vec();
        let build_id = elf.build_id().map(|id| BuildId(id.to_vec()));
        let fingerprint = fingerprint(&elf);
        let linking = Linking::read(bytes);
        // A process has at most 2^31 mappings, each at most one module.
        let id = ModuleId(u32::try_from(self.modules.len()).map_err(|_| Unreadable::NoSegment)?);
        self.modules.push(Module {
            id,
            path: path.to_owned(),
            build_id,
            device_unconfirmed,
            fingerprint,
            content,
            segments,
            linking,
        });
        Ok(id)
    }
}

/// Opens the file behind a mapping: the very inode where we may, else what its path leads to.
fn open_mapped(pid: u32, entry: &MapsEntry, path: &Path) -> Result<Opened, Unreadable> {
    let (start, end) = (entry.range.start, entry.range.end);
    let absent = Unreadable::CannotOpen(io::ErrorKind::NotFound);
    let exactly = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    let gone = match open_exactly(&exactly).map_err(Unreadable::from) {
        Ok(file) if is_still(entry, path, &file) => {
            return Ok(Opened {
                file,
                device_unconfirmed: false,
            });
        }
        // Another file's mapping has its place by now.
        Ok(_) => true,
        Err(Unreadable::NotRegular) => return Err(Unreadable::NotRegular),
        // Not permitted, or the mapping went away since the maps were read.
        Err(error) => error == absent,
    };
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    // It is mapped: there is no limit to what may be.
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

/// Whether the file that is mapped now is the one that the maps named.
///
/// Some file systems have one inode number for `stat` and another for maps; their paths must do.
fn is_still(entry: &MapsEntry, path: &Path, file: &File) -> bool {
    let same_inode = file
        .metadata()
        .is_ok_and(|metadata| metadata.ino() == entry.inode);
    let opened_path = || fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    same_inode || without_deleted(&opened_path()) == path.as_os_str().as_bytes()
}

/// A path as the kernel writes it, without its mark of deleted files.
fn without_deleted(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)
}

fn cannot_open(error: &io::Error) -> Unreadable {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Unreadable::NoPermission;
    }
    Unreadable::CannotOpen(error.kind())
}

/// The bytes of a mapping, out of the process's memory.
fn read_memory(pid: u32, entry: &MapsEntry) -> io::Result<Vec<u8>> {
    let length = entry.range.end.offset_from(entry.range.start);
    let length = usize::try_from(length.min(MAX_VDSO_BYTES)).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    ProcessMemory::open(pid)?.read_exact_at(&mut bytes, entry.range.start)?;
    Ok(bytes)
}
