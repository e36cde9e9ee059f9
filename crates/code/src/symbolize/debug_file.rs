//! Finds the separate debug file of an object, by build-id, else by `.gnu_debuglink`; and the supplementary
//! file with the content that several debug files share (dwz), by `.gnu_debugaltlink`.
//!
//! A file is used only if it belongs to the object: it has the same build-id or, if there is none, the
//! checksum in the link.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::SHT_NOTE;
use object::read::ReadCache;
use object::read::elf::{NoteIterator, ProgramHeader, SectionHeader};
use object::{LittleEndian, Object, ReadRef};

use super::elf::{Elf, parse_copied};
use memleak_process::foreign::{LastLink, OpenError, ResolvedFile, open_in_root};

/// Directory of separate debug files.
pub(super) const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// Maximum size of a debug file in bytes.
const MAX_FILE: u64 = 4 << 30;

/// Maximum length of a build-id in bytes. Linkers make 8, 16 or 20.
const MAX_BUILD_ID: usize = 64;
/// Maximum number of notes that are searched, and maximum size of each in bytes. Objects have half a dozen,
/// the largest of some ten kilobytes.
const MAX_NOTES: usize = 64;
const MAX_NOTE_BYTES: u64 = 1 << 20;

/// Key of an object in debug directories and on debuginfod servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BuildId(Vec<u8>);

/// Opens a debug file by a path in the root of a process.
pub(super) fn open_regular(root: &Path, path: &Path) -> Result<ResolvedFile, OpenError> {
    open_in_root(root, path, LastLink::Follow, MAX_FILE)
}

/// References from an object to its debug file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DebugLinks {
    build_id: Option<BuildId>,
    link: Option<(Vec<u8>, u32)>,
}

impl DebugLinks {
    pub(super) fn of<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Self {
        let link = elf.gnu_debuglink().ok().flatten();
        Self {
            build_id: BuildId::of(elf),
            link: link.map(|(name, crc)| (name.to_vec(), crc)),
        }
    }

    pub(super) fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// Finds the first debug file for the object at `path`, under each of `roots` in turn.
    pub(super) fn find(&self, path: &Path, roots: &[PathBuf]) -> Option<ResolvedFile> {
        roots.iter().find_map(|root| {
            let by_id = self.build_id.as_ref().and_then(|id| id.open_kept(root));
            by_id.or_else(|| {
                self.link_paths(path)
                    .iter()
                    .find_map(|file| self.open_linked(root, file))
            })
        })
    }

    fn open_linked(&self, root: &Path, path: &Path) -> Option<ResolvedFile> {
        let (_, crc) = self.link.as_ref()?;
        let opened = open_regular(root, path).ok()?;
        let belongs = match (&self.build_id, build_id_of(&opened.file)) {
            (Some(own), Some(other)) => *own == other,
            _ => crc_of(&opened.file).ok()? == *crc,
        };
        belongs.then_some(opened)
    }

    /// Possible paths of the linked file, in the order of GDB's manual ("Separate Debug Files").
    fn link_paths(&self, path: &Path) -> Vec<PathBuf> {
        let name = self.link.as_ref().map(|(name, _)| OsStr::from_bytes(name));
        // Reject names with slashes, which would let the file choose any path.
        let name = name.filter(|name| Path::new(name).file_name() == Some(name));
        let (Some(name), Some(directory)) = (name, path.parent()) else {
            return Vec::new();
        };
        let below_root = directory.strip_prefix("/").unwrap_or(directory);
        vec![
            directory.join(name),
            directory.join(".debug").join(name),
            Path::new(DEBUG_DIRECTORY).join(below_root).join(name),
        ]
    }
}

/// Reference from a debug file to its supplementary file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SupplementaryLink {
    name: PathBuf,
    build_id: BuildId,
}

impl SupplementaryLink {
    /// Reads `.gnu_debugaltlink`.
    pub(super) fn of<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Option<Self> {
        let (name, build_id) = elf.gnu_debugaltlink().ok().flatten()?;
        Some(Self {
            name: PathBuf::from(OsStr::from_bytes(name)),
            build_id: BuildId::new(build_id)?,
        })
    }

    pub(super) fn build_id(&self) -> &BuildId {
        &self.build_id
    }

    /// Opens the file, for a debug file at `linking`, under each of `roots` in turn: a relative name starts
    /// at the debug file's directory.
    pub(super) fn find(&self, linking: Option<&Path>, roots: &[PathBuf]) -> Option<File> {
        let directory = linking.and_then(Path::parent);
        let named = match directory {
            Some(directory) => Some(directory.join(&self.name)),
            None => Some(self.name.clone()).filter(|name| name.is_absolute()),
        };
        let found = roots.iter().find_map(|root| {
            let named = named
                .as_deref()
                .and_then(|path| self.build_id.open_same(root, path));
            named.or_else(|| self.build_id.open_kept(root))
        });
        found.map(|opened| opened.file)
    }
}

impl BuildId {
    fn new(bytes: &[u8]) -> Option<Self> {
        (2..=MAX_BUILD_ID)
            .contains(&bytes.len())
            .then(|| Self(bytes.to_vec()))
    }

    /// Searches the notes of the segments, then those of the sections, up to [`MAX_NOTES`] each.
    fn of<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Option<Self> {
        let (endian, data) = (LittleEndian, elf.data());
        let segments = elf.elf_program_headers().iter();
        let of_segments = segments.filter_map(|segment| {
            let is_short = segment.p_filesz(endian) <= MAX_NOTE_BYTES;
            is_short.then(|| segment.notes(endian, data).ok().flatten())?
        });
        if let Some(id) = of_segments.take(MAX_NOTES).find_map(Self::among) {
            return Some(id);
        }
        let sections = elf.elf_section_table().iter();
        let of_sections = sections.filter_map(|section| {
            let is_short = section.sh_size(endian) <= MAX_NOTE_BYTES && section.sh_type(endian) == SHT_NOTE;
            is_short.then(|| section.notes(endian, data).ok().flatten())?
        });
        of_sections.take(MAX_NOTES).find_map(Self::among)
    }

    fn among(mut notes: NoteIterator<'_, object::elf::FileHeader64<LittleEndian>>) -> Option<Self> {
        while let Some(note) = notes.next().ok()? {
            if note.name() == object::elf::ELF_NOTE_GNU
                && note.n_type(LittleEndian) == object::elf::NT_GNU_BUILD_ID
            {
                return Self::new(note.desc());
            }
        }
        None
    }

    /// Opens the file at `path` if it has this build-id.
    pub(super) fn open_same(&self, root: &Path, path: &Path) -> Option<ResolvedFile> {
        let opened = open_regular(root, path).ok()?;
        self.is_of(&opened.file).then_some(opened)
    }

    pub(super) fn is_of(&self, file: &File) -> bool {
        build_id_of(file).as_ref() == Some(self)
    }

    /// Opens the file with this build-id in [`DEBUG_DIRECTORY`].
    fn open_kept(&self, root: &Path) -> Option<ResolvedFile> {
        self.open_same(root, &self.kept_path())
    }

    /// `/usr/lib/debug/.build-id/ab/cdef….debug`.
    fn kept_path(&self) -> PathBuf {
        let hex = self.to_string();
        let (first, rest) = hex.split_at(2);
        PathBuf::from(format!("{DEBUG_DIRECTORY}/.build-id/{first}/{rest}.debug"))
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn build_id_of(file: &File) -> Option<BuildId> {
    let cache = ReadCache::new(file);
    BuildId::of(&parse_copied(&cache)?)
}

/// Checksum in `.gnu_debuglink`: the CRC-32 of zip files.
fn crc_of(mut file: &File) -> io::Result<u32> {
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    file.rewind()?;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(crc.finalize()),
            length => crc.update(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The CRC has its published check value, and covers the whole file wherever its cursor is.
    #[test]
    fn crc_of_the_nine_digits() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"123456789").expect("room");
        assert_eq!(crc_of(&file).expect("it can be read"), 0xcbf4_3926);
    }

    /// A build-id gives one path; one that is too short for a directory and a file, or too long, gives none.
    #[test]
    fn build_id_paths() {
        let path = |bytes: &[u8]| BuildId::new(bytes).map(|id| id.kept_path());
        assert_eq!(
            path(&[0xab, 0x01, 0xff]),
            Some(PathBuf::from("/usr/lib/debug/.build-id/ab/01ff.debug"))
        );
        for bytes in [&[][..], &[0xab], &[0; 65]] {
            assert_eq!(path(bytes), None, "{bytes:?}");
        }
    }

    /// A link's name gives three paths; a name that is itself a path gives none.
    #[test]
    fn link_paths() {
        let links = |name: &str| DebugLinks {
            build_id: None,
            link: Some((name.as_bytes().to_vec(), 0)),
        };
        let expected = [
            "/opt/bin/x.debug",
            "/opt/bin/.debug/x.debug",
            "/usr/lib/debug/opt/bin/x.debug",
        ];
        let paths = links("x.debug").link_paths(Path::new("/opt/bin/x"));
        assert_eq!(paths, expected.map(PathBuf::from));
        for evil in ["../x", "/etc/passwd", "a/b", "..", ""] {
            assert_eq!(
                links(evil).link_paths(Path::new("/opt/bin/x")),
                Vec::<PathBuf>::new(),
                "{evil}"
            );
        }
    }
}
