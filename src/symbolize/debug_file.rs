//! Finding the separate debug file of an object: by build-id, else by `.gnu_debuglink`.
//!
//! A file is used only if it says that it belongs to the object: by the same build-id or, where there is
//! none, by the checksum that the link states.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ReadRef};

use super::root::open_regular;

const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// What an object says about its debug file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DebugLinks {
    build_id: Option<Vec<u8>>,
    /// File name and checksum.
    link: Option<(Vec<u8>, u32)>,
}

impl DebugLinks {
    /// What `elf` says.
    pub(super) fn of<'a, R: ReadRef<'a>>(elf: &ElfFile64<'a, LittleEndian, R>) -> Self {
        let link = elf.gnu_debuglink().ok().flatten();
        Self {
            build_id: build_id(elf),
            link: link.map(|(name, crc)| (name.to_vec(), crc)),
        }
    }

    /// The first debug file found for the object at `path`, looking under each of `roots` in turn.
    pub(super) fn find(&self, path: &Path, roots: &[PathBuf]) -> Option<File> {
        roots.iter().find_map(|root| {
            let by_id = self.build_id.as_deref().and_then(build_id_path);
            let by_id = by_id.and_then(|file| self.open_same_id(root, &file));
            by_id.or_else(|| {
                self.link_paths(path)
                    .iter()
                    .find_map(|file| self.open_linked(root, file))
            })
        })
    }

    fn open_same_id(&self, root: &Path, path: &Path) -> Option<File> {
        let file = open_regular(root, path).ok()?;
        (build_id_of(&file) == self.build_id).then_some(file)
    }

    fn open_linked(&self, root: &Path, path: &Path) -> Option<File> {
        let (_, crc) = self.link.as_ref()?;
        let file = open_regular(root, path).ok()?;
        let belongs = match (&self.build_id, build_id_of(&file)) {
            (Some(own), Some(other)) => *own == other,
            _ => crc_of(&file).ok()? == *crc,
        };
        belongs.then_some(file)
    }

    /// Where the linked file may lie, as GDB's manual orders it ("Separate Debug Files").
    fn link_paths(&self, path: &Path) -> Vec<PathBuf> {
        let name = self.link.as_ref().map(|(name, _)| OsStr::from_bytes(name));
        // A name with slashes would be a path of the file's choosing.
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

fn build_id<'a, R: ReadRef<'a>>(elf: &ElfFile64<'a, LittleEndian, R>) -> Option<Vec<u8>> {
    elf.build_id().ok().flatten().map(<[u8]>::to_vec)
}

fn build_id_of(file: &File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    build_id(&ElfFile64::<LittleEndian, _>::parse(&cache).ok()?)
}

/// `/usr/lib/debug/.build-id/ab/cdef….debug`.
fn build_id_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PathBuf::from(format!(
        "{DEBUG_DIRECTORY}/.build-id/{first:02x}/{hex}.debug"
    )))
}

fn crc_of(mut file: &File) -> io::Result<u32> {
    let mut crc = Crc::new();
    let mut buffer = vec![0; 1 << 16];
    file.rewind()?;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(crc.finish()),
            length => crc.update(&buffer[..length]),
        }
    }
}

/// The checksum of `.gnu_debuglink`: CRC-32 with the reflected polynomial 0xedb88320, as in zip files.
struct Crc(u32);

impl Crc {
    const TABLE: [u32; 256] = crc_table();

    fn new() -> Self {
        Self(!0)
    }

    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let [low, ..] = self.0.to_le_bytes();
            self.0 = Self::TABLE[usize::from(low ^ byte)] ^ (self.0 >> 8);
        }
    }

    fn finish(self) -> u32 {
        !self.0
    }
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index: u32 = 0;
    while index < 256 {
        let mut value = index;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (0xedb8_8320 * (value & 1));
            bit += 1;
        }
        table[index as usize] = value;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value that every description of this CRC gives.
    #[test]
    fn crc_of_the_nine_digits() {
        let mut crc = Crc::new();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.finish(), 0xcbf4_3926);
    }

    /// A build-id names one file; one too short to have a directory and a file names none.
    #[test]
    fn build_id_paths() {
        let path = build_id_path(&[0xab, 0x01, 0xff]);
        assert_eq!(
            path,
            Some(PathBuf::from("/usr/lib/debug/.build-id/ab/01ff.debug"))
        );
        assert_eq!(build_id_path(&[0xab]), None);
        assert_eq!(build_id_path(&[]), None);
    }

    /// A link's name is looked for in three places, and a name that is a path in none.
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
