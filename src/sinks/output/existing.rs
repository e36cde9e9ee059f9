//! Examines the file that exists at the name of an output, and decides whether it may be written to.
//!
//! In a directory where others may create files, such as /tmp, another user can create that name first: as a
//! link to a file that only we may write, as a pipe or file of theirs, to read the output, or as a link to a
//! disk. So nothing is written to a file of another user, and no link of another user is followed. (The
//! kernel can do the same, with fs.protected_symlinks and similar settings, but these may be off.) A
//! descriptor keeps the file that was examined, so that the output goes to exactly that file.

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

use super::error::OutputError;
use crate::process::launch;

/// Maximum number of links followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// Existing file, known by a descriptor that does not open it (`O_PATH`).
pub(super) struct ExistingFile {
    descriptor: OwnedFd,
    metadata: Metadata,
    /// Name after all links are followed.
    pub(super) path: PathBuf,
}

impl ExistingFile {
    /// Examines the file that `path` leads to; `None` if nothing has that name.
    ///
    /// # Errors
    ///
    /// Fails if it belongs to another user, or is a link that leads nowhere.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, OutputError> {
        let cannot = |error: io::Error| OutputError::File {
            path: path.to_owned(),
            error,
        };
        let mut name = path.to_owned();
        for links in 0..=MAX_LINKS {
            let step = match lookup(&name) {
                Err(error) if links == 0 && error.kind() == io::ErrorKind::NotFound => return Ok(None),
                step => step.map_err(cannot)?,
            };
            match step {
                Step::Found(existing) => return Ok(Some(existing)),
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

    /// Opens the file that was examined, even if another one has its name by now.
    pub(super) fn open(&self, options: &OpenOptions) -> io::Result<File> {
        let mut options = options.clone();
        options.custom_flags(OFlag::O_NOCTTY.bits());
        options.open(own_link(&self.descriptor))
    }
}

/// Result of looking up one name.
enum Step {
    Found(ExistingFile),
    /// Target of a link.
    Link(PathBuf),
    /// Owner, who is another user.
    Stranger(u32),
}

fn lookup(name: &Path) -> io::Result<Step> {
    let (directory, file) = match (name.parent(), name.file_name()) {
        (Some(directory), Some(file)) if directory != Path::new("") => (directory, file),
        (_, Some(file)) => (Path::new("."), file),
        (_, None) => return Err(io::ErrorKind::IsADirectory.into()),
    };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let parent = open(directory, flags | OFlag::O_DIRECTORY, Mode::empty())?;
    let descriptor = openat(&parent, file, flags | OFlag::O_NOFOLLOW, Mode::empty())?;
    let metadata = metadata_of(&descriptor)?;
    let is_link = metadata.file_type().is_symlink();
    if is_link && fstatfs(&descriptor)?.filesystem_type() == PROC_SUPER_MAGIC {
        // Not a name, but a file that a process has open: with /dev/stdout, our own.
        return existing_file(open(name, flags, Mode::empty())?, name.to_owned());
    }
    if !is_trusted(metadata.uid(), metadata_of(&parent)?.uid())? {
        return Ok(Step::Stranger(metadata.uid()));
    }
    match is_link {
        true => Ok(Step::Link(directory.join(readlinkat(&descriptor, "")?))),
        false => existing_file(descriptor, directory.join(file)),
    }
}

fn existing_file(descriptor: OwnedFd, path: PathBuf) -> io::Result<Step> {
    let metadata = metadata_of(&descriptor)?;
    Ok(Step::Found(ExistingFile {
        descriptor,
        metadata,
        path,
    }))
}

/// Returns whether a file of `owner` may be written to in a directory of user `of_directory`: that user is
/// trusted too, as they can do anything with files that we create there.
fn is_trusted(owner: u32, of_directory: u32) -> io::Result<bool> {
    if [0, geteuid().as_raw(), of_directory].contains(&owner) {
        return Ok(true);
    }
    Ok(launch::invoking_user()?.is_some_and(|(user, _)| user == owner))
}

fn metadata_of(descriptor: &OwnedFd) -> io::Result<Metadata> {
    File::from(descriptor.try_clone()?).metadata()
}

fn own_link(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Returns whether a regular file exists and begins with `begin`. Devices, pipes and files of other users are
/// not read.
pub(super) fn begins_with(path: &Path, begin: &[u8]) -> bool {
    let read = || {
        let existing = ExistingFile::at(path)
            .ok()
            .flatten()
            .filter(ExistingFile::is_file)?;
        let file = existing.open(OpenOptions::new().read(true)).ok()?;
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

    /// A directory in which everyone may create files, as in /tmp.
    fn shared_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).expect("our own");
        directory
    }

    /// Describes in one word what is at a name.
    fn content(path: &Path) -> String {
        match ExistingFile::at(path) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(existing)) if existing.is_file() => fs::read_to_string(&existing.path).expect("text"),
            Ok(Some(_)) => "special".to_owned(),
            Err(OutputError::Stranger { owner, .. }) => format!("{owner}'s"),
            Err(error) => error.to_string(),
        }
    }

    /// Our files and the targets of our links are found; another user's files and the targets of their links
    /// are refused.
    #[test]
    fn other_users_files_are_refused_as_root() {
        let (shared, own) = (shared_directory(), tempfile::tempdir().expect("a directory"));
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
            assert_eq!(content(&path(name)), expected, "{name}");
        }
        for (name, part) in [("dangling", "No such file"), ("loop", "Too many")] {
            assert!(
                content(&path(name)).contains(part),
                "{name}: {}",
                content(&path(name))
            );
        }
        // In a user's own directory, that user's files are expected.
        chown(shared.path(), Some(STRANGER), None).expect("as root");
        assert_eq!(content(&path("his-file")), "his");
        assert!(!begins_with(&path("his-pipe"), b"h") && begins_with(&path("his-file"), b"hi"));
    }

    /// Files that we have open ourselves are ours, whoever created them.
    #[test]
    fn own_descriptors() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let name = PathBuf::from(format!("/dev/fd/{}", writer.as_raw_fd()));
        let existing = ExistingFile::at(&name).ok().flatten().expect("it is there");
        assert!(!existing.is_file());
        let mut opened = existing.open(OpenOptions::new().write(true)).expect("it is ours");
        io::Write::write_all(&mut opened, b"text").expect("written");
        drop((opened, writer));
        assert_eq!(io::read_to_string(reader).expect("text"), "text");
        assert_eq!(content(Path::new("/dev/null")), "special");
    }
}
