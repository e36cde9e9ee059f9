//! What is at the name of an output already, and whether to write to it.
//!
//! In a directory where others may make files, such as /tmp, somebody can be there first: with a link to a file that only
//! we may write, with a pipe or a file of his own to read along, with a link to a disk. So nothing is written to what
//! belongs to a stranger, and no link of a stranger's is followed. (The kernel can do the same, fs.protected_symlinks and
//! so on, but need not.) What is looked at is held, and it is what is written to.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::geteuid;

use super::OutputError;
use crate::process::launch;

/// As many links are followed as the kernel follows.
const MAX_LINKS: usize = 40;

/// What is there, held but not open.
pub(super) struct There {
    held: OwnedFd,
    metadata: Metadata,
    /// Its name, where all links are followed.
    pub(super) path: PathBuf,
}

impl There {
    /// What `path` leads to; `None` if nothing has that name.
    ///
    /// # Errors
    ///
    /// It is a stranger's, or a link that leads nowhere.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, OutputError> {
        let cannot = |error: io::Error| OutputError::File {
            path: path.to_owned(),
            error,
        };
        let mut name = path.to_owned();
        for links in 0..=MAX_LINKS {
            let step = match look(&name) {
                Err(error) if links == 0 && error.kind() == io::ErrorKind::NotFound => return Ok(None),
                step => step.map_err(cannot)?,
            };
            match step {
                Step::Here(there) => return Ok(Some(there)),
                Step::Stranger(owner) => {
                    let path = path.to_owned();
                    return Err(OutputError::Stranger { path, owner });
                }
                Step::Link(target) => name = target,
            }
        }
        Err(cannot(Errno::ELOOP.into()))
    }

    pub(super) fn is_file(&self) -> bool {
        self.metadata.is_file()
    }

    /// Opens it, whatever has its name by now.
    pub(super) fn open(&self, options: &OpenOptions) -> io::Result<File> {
        let mut options = options.clone();
        options.custom_flags(OFlag::O_NOCTTY.bits());
        options.open(own_link(&self.held))
    }
}

/// What one name says.
enum Step {
    Here(There),
    /// Another name.
    Link(PathBuf),
    /// It belongs to this user.
    Stranger(u32),
}

fn look(name: &Path) -> io::Result<Step> {
    let (directory, file) = match (name.parent(), name.file_name()) {
        (Some(directory), Some(file)) if directory != Path::new("") => (directory, file),
        (_, Some(file)) => (Path::new("."), file),
        (_, None) => return Err(io::ErrorKind::IsADirectory.into()),
    };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let directory_held = open(directory, flags | OFlag::O_DIRECTORY, Mode::empty())?;
    let held = openat(&directory_held, file, flags | OFlag::O_NOFOLLOW, Mode::empty())?;
    let metadata = metadata_of(&held)?;
    let is_link = metadata.file_type().is_symlink();
    if is_link && fstatfs(&held)?.filesystem_type() == PROC_SUPER_MAGIC {
        // No name, but what a process has open: with /dev/stdout, we.
        return here(open(name, flags, Mode::empty())?, name.to_owned());
    }
    if !is_trusted(metadata.uid(), metadata_of(&directory_held)?.uid())? {
        return Ok(Step::Stranger(metadata.uid()));
    }
    match is_link {
        true => Ok(Step::Link(directory.join(readlinkat(&held, "")?))),
        false => here(held, directory.join(file)),
    }
}

fn here(held: OwnedFd, path: PathBuf) -> io::Result<Step> {
    let metadata = metadata_of(&held)?;
    Ok(Step::Here(There { held, metadata, path }))
}

/// Whether what belongs to `owner` may be written to, in a directory of this one's: who owns that can do as he likes with
/// what we make there, too.
fn is_trusted(owner: u32, of_directory: u32) -> io::Result<bool> {
    if [0, geteuid().as_raw(), of_directory].contains(&owner) {
        return Ok(true);
    }
    Ok(launch::invoking_user()?.is_some_and(|(user, _)| user == owner))
}

fn metadata_of(held: &OwnedFd) -> io::Result<Metadata> {
    File::from(held.try_clone()?).metadata()
}

fn own_link(held: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", held.as_raw_fd())
}

/// Whether a file is there that begins so. Devices and pipes are not read, nor is a stranger's file.
pub(super) fn begins_with(path: &Path, begin: &[u8]) -> bool {
    let read = || {
        let there = There::at(path).ok().flatten().filter(There::is_file)?;
        let file = there.open(OpenOptions::new().read(true)).ok()?;
        let mut bytes = vec![0; begin.len()];
        io::Read::read_exact(&mut &file, &mut bytes).ok()?;
        Some(bytes)
    };
    read().is_some_and(|bytes| bytes == begin)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use nix::unistd::mkfifo;

    use super::*;

    const STRANGER: u32 = 4711;

    /// A directory in which everybody may make files, as in /tmp.
    fn everybodys() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).expect("our own");
        directory
    }

    /// What is at a name, in one word.
    fn told(path: &Path) -> String {
        match There::at(path) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(there)) if there.is_file() => fs::read_to_string(&there.path).expect("text"),
            Ok(Some(_)) => "special".to_owned(),
            Err(OutputError::Stranger { owner, .. }) => format!("{owner}'s"),
            Err(error) => error.to_string(),
        }
    }

    /// What is ours, and what our links lead to, is found; what is a stranger's, and what his links lead to, is not.
    #[test]
    fn whose_it_is_as_root() {
        let (shared, own) = (everybodys(), tempfile::tempdir().expect("a directory"));
        let path = |name: &str| shared.path().join(name);
        fs::write(path("file"), "ours").expect("a file");
        fs::write(own.path().join("secret"), "secret").expect("a file");
        symlink("file", path("link")).expect("a link");
        symlink(path("link"), path("link-to-link")).expect("a link");
        symlink("nowhere", path("dangling")).expect("a link");
        symlink("loop", path("loop")).expect("a link");
        mkfifo(&path("pipe"), Mode::S_IRWXU).expect("a pipe");
        for (name, to) in [
            ("his-link", own.path().join("secret")),
            ("his-disk", "/dev/null".into()),
        ] {
            symlink(to, path(name)).expect("a link");
            lchown(path(name), Some(STRANGER), None).expect("as root");
        }
        symlink("his-link", path("ours-to-his")).expect("a link");
        fs::write(path("his-file"), "his").expect("a file");
        mkfifo(&path("his-pipe"), Mode::S_IRWXU).expect("a pipe");
        for name in ["his-file", "his-pipe"] {
            chown(path(name), Some(STRANGER), None).expect("as root");
        }
        for (name, expected) in [
            ("file", "ours"),
            ("link", "ours"),
            ("link-to-link", "ours"),
            ("nothing-there", "nothing"),
            ("pipe", "special"),
            ("his-link", "4711's"),
            ("his-disk", "4711's"),
            ("ours-to-his", "4711's"),
            ("his-file", "4711's"),
            ("his-pipe", "4711's"),
        ] {
            assert_eq!(told(&path(name)), expected, "{name}");
        }
        for (name, part) in [("dangling", "No such file"), ("loop", "Too many")] {
            assert!(told(&path(name)).contains(part), "{name}: {}", told(&path(name)));
        }
        // In a directory of his own, his files are what is to be expected.
        chown(shared.path(), Some(STRANGER), None).expect("as root");
        assert_eq!(told(&path("his-file")), "his");
        assert!(!begins_with(&path("his-pipe"), b"h") && begins_with(&path("his-file"), b"hi"));
    }

    /// What we have open ourselves is ours, whoever made it.
    #[test]
    fn own_descriptors() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let name = PathBuf::from(format!("/dev/fd/{}", writer.as_raw_fd()));
        let there = There::at(&name).ok().flatten().expect("it is there");
        assert!(!there.is_file());
        let mut opened = there.open(OpenOptions::new().write(true)).expect("it is ours");
        io::Write::write_all(&mut opened, b"text").expect("written");
        drop((opened, writer));
        assert_eq!(io::read_to_string(reader).expect("text"), "text");
        assert_eq!(told(Path::new("/dev/null")), "special");
    }
}
