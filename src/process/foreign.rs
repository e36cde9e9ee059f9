//! Opening files that somebody else names: a traced process, by what it maps, or an ELF file, by what is written in it.
//!
//! Who names a file may want us, who have more rights, to open another one, and may change what a name leads to at any
//! moment. So a name is resolved once, by the kernel and inside the root that it is meant in, to a file that is held but
//! not yet opened (`O_PATH`); what that file is, is asked of it; and then that very file is opened. Nothing is ever opened
//! that is not a regular file, nor one of those that the kernel makes up (`/proc`, `/sys`): to open or to read one of
//! these can act, or wait, or take from its real reader what comes only once.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::statfs::fstatfs;
use thiserror::Error;

/// File systems whose files are made up by the kernel when they are opened or read, by their numbers in statfs(2)
/// (Linux, `include/uapi/linux/magic.h` and, of some, their own sources).
const MADE_UP: [i64; 24] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x5a3c_69f0, // apparmorfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs
    0x1cd1,      // devpts
    0x4249_4e4d, // binfmt_misc
    0x0765_5821, // resctrl
    0xabba_1974, // xenfs
    0x6573_5543, // fusectl
    0x1980_0202, // mqueue
    0x6e73_6673, // nsfs
    0x0904_1934, // anon_inode
    0x6c6f_6f70, // binder
    0x5345_434d, // secretmem
];

/// How often a name is resolved anew while directories on its way are being renamed or mounted.
const TRIES: usize = 16;

/// Whether the last part of a name may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    /// It is followed, inside the root.
    Follow,
    /// It is refused.
    Refuse,
}

/// A file was not opened.
#[derive(Debug, Error)]
pub(crate) enum OpenError {
    /// It is a device, a pipe, a directory, or one that the kernel makes up.
    #[error("it is not a regular file")]
    NotRegular,
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotRegular => Self::new(io::ErrorKind::InvalidInput, error),
            OpenError::System(error) => error,
        }
    }
}

/// A regular file that is known and held, but not opened.
#[derive(Debug)]
struct Held {
    descriptor: OwnedFd,
    metadata: Metadata,
}

/// A file under a root.
#[derive(Debug)]
pub(crate) struct Found {
    /// The file.
    pub(crate) file: File,
    /// Where it lies, in that root: without links, so that names beside it can be made of it.
    pub(crate) path: PathBuf,
}

/// Opens the regular file of at most `most` bytes that `path` names for a process whose root is `root`.
///
/// Links, and `..`, mean what they mean to that process: none leads out of the root. Links that are no names, such as
/// those of `/proc/self/fd`, lead nowhere.
///
/// # Errors
///
/// There is none, it is larger, or it is not regular.
pub(crate) fn open_in_root(root: &Path, path: &Path, last: LastLink, most: u64) -> Result<Found, OpenError> {
    let root_directory = held(root, OFlag::O_DIRECTORY)?;
    let descriptor = resolve(&root_directory, path, last)?;
    let held = Held::regular(descriptor)?;
    if held.metadata.len() > most {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
    }
    let root_path = name_of(&root_directory)?;
    // In another mount namespace than ours, names begin at that one's root.
    let own = name_of(&held.descriptor)?;
    let inside = own.strip_prefix(&root_path).unwrap_or(&own);
    Ok(Found {
        path: Path::new("/").join(inside),
        file: held.open()?,
    })
}

/// Device and inode of the file that `path` names for a process whose root is `root`. It is not opened.
pub(super) fn identity_in_root(root: &Path, path: &Path) -> io::Result<(u64, u64)> {
    let descriptor = resolve(&held(root, OFlag::O_DIRECTORY)?, path, LastLink::Follow)?;
    let metadata = metadata_of(&descriptor)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Opens the regular file that is at `path` as we see it, by links of all kinds: such as the kernel's own to what a
/// process has mapped.
pub(crate) fn open_exactly(path: &Path) -> Result<File, OpenError> {
    Ok(Held::regular(held(path, OFlag::empty())?)?.open()?)
}

impl Held {
    fn regular(descriptor: OwnedFd) -> Result<Self, OpenError> {
        let metadata = metadata_of(&descriptor)?;
        let kind = fstatfs(&descriptor).map_err(io::Error::from)?.filesystem_type();
        if !metadata.is_file() || MADE_UP.contains(&kind.0) {
            return Err(OpenError::NotRegular);
        }
        Ok(Self { descriptor, metadata })
    }

    /// Opens this very file. One that somebody holds a lease on is not waited for.
    fn open(&self) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
            .open(own_link(&self.descriptor))
    }
}

fn held(path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | flags;
    Ok(nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?)
}

/// What a name leads to inside a root.
fn resolve(root: &OwnedFd, path: &Path, last: LastLink) -> io::Result<OwnedFd> {
    let mut flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    if last == LastLink::Refuse {
        // What is held then is the link.
        flags |= OFlag::O_NOFOLLOW;
    }
    let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags).resolve(inside);
    let mut result = Err(Errno::EAGAIN);
    for _ in 0..TRIES {
        result = openat2(root.as_fd(), path, how);
        // The kernel could not tell whether a `..` stayed inside, as something was renamed or mounted meanwhile.
        if !matches!(result, Err(Errno::EAGAIN)) {
            break;
        }
    }
    Ok(result?)
}

fn metadata_of(descriptor: &OwnedFd) -> io::Result<Metadata> {
    // The standard library asks the descriptor, and does not care that it cannot be read from.
    File::from(descriptor.try_clone()?).metadata()
}

/// Where the kernel says that a file is.
fn name_of(descriptor: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(own_link(descriptor))
}

fn own_link(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const MAX: u64 = 1 << 20;

    fn open(root: &Path, path: &str) -> Result<Found, OpenError> {
        open_in_root(root, Path::new(path), LastLink::Follow, MAX)
    }

    /// A root with a file of each name, whose text is that name.
    fn root_of(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
            fs::write(path, file).expect("a file");
        }
        root
    }

    /// Absolute links start at the root again, no number of `..` leads out of it, and a file's own name is without both.
    #[test]
    fn links_stay_inside() {
        let root = root_of(&["bin/sh", "usr/lib/x.so", "debug/ab", "etc/passwd", "x"]);
        let link = |at: &str, to: &str| symlink(to, root.path().join(at)).expect("a link");
        link("lib", "usr/lib");
        link("usr/lib/debug", "/debug");
        link("usr/up", "../../../../etc");
        link("loop", "/loop/x");
        link("self", "self");
        for (path, expected) in [
            ("/bin/sh", "bin/sh"),
            ("bin/sh", "bin/sh"),
            ("/lib/x.so", "usr/lib/x.so"),
            ("/lib/debug/ab", "debug/ab"),
            ("/usr/up/passwd", "etc/passwd"),
            ("/../../etc/./passwd", "etc/passwd"),
            ("/usr/lib/../up/../x", "x"),
        ] {
            let found = open(root.path(), path).expect(path);
            assert_eq!(found.path, Path::new("/").join(expected), "{path}");
            assert_eq!(io::read_to_string(found.file).expect("text"), expected, "{path}");
        }
        for path in ["/loop/y", "/self", "/missing/x", "/", "/etc", ""] {
            assert!(open(root.path(), path).is_err(), "{path}");
        }
        let refused = |path: &str| open_in_root(root.path(), Path::new(path), LastLink::Refuse, MAX);
        link("to-x", "x");
        assert!(matches!(refused("/to-x"), Err(OpenError::NotRegular)));
        assert!(refused("/x").is_ok() && refused("/lib/x.so").is_ok());
    }

    /// Nothing but a regular file of a limited size is opened: the opening of a pipe would wait here for ever.
    #[test]
    fn only_regular_files_open() {
        let root = root_of(&["small"]);
        let path = |name: &str| root.path().join(name);
        mkfifo(&path("pipe"), Mode::S_IRWXU).expect("a pipe");
        let long = File::create(path("long")).expect("a file");
        long.set_len(MAX + 1).expect("a hole");
        symlink("/long", path("to-long")).expect("a link");
        assert!(matches!(open(root.path(), "/pipe"), Err(OpenError::NotRegular)));
        for name in ["/long", "/to-long"] {
            let error = io::Error::from(open(root.path(), name).expect_err(name));
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
        // The kernel's: of these, the first says that it is regular.
        for name in ["/proc/self/status", "/dev/null", "/proc/self/exe", "/etc"] {
            assert!(open(Path::new("/"), name).is_err(), "{name}");
        }
        assert!(open(Path::new("/"), "/etc/passwd").is_ok());
        assert!(matches!(open_exactly(&path("pipe")), Err(OpenError::NotRegular)));
        assert!(matches!(
            open_exactly(Path::new("/dev/zero")),
            Err(OpenError::NotRegular)
        ));
        assert!(matches!(
            open_exactly(Path::new("/proc/self/status")),
            Err(OpenError::NotRegular)
        ));
        // The kernel's own link, which is no name.
        assert!(open_exactly(Path::new("/proc/self/exe")).is_ok());
    }

    /// While a name changes as fast as it can between a file, a pipe, a link out of the root and a device, what is opened
    /// is always the file.
    #[test]
    fn what_is_swapped_is_never_opened() {
        let root = root_of(&["real", "secret/inside"]);
        let outside = root_of(&["outside"]);
        let path = |name: &str| root.path().join(name);
        mkfifo(&path("pipe"), Mode::S_IRWXU).expect("a pipe");
        symlink(outside.path().join("outside"), path("out")).expect("a link");
        symlink("../../../../../../../../../../dev/zero", path("device")).expect("a link");
        let done = AtomicBool::new(false);
        let (mut opened, mut refused) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for name in ["real", "pipe", "out", "device"] {
                        fs::hard_link(path(name), path("new")).expect("another name");
                        fs::rename(path("new"), path("name")).expect("renamed");
                        // Names of one file: the rename leaves both.
                        _ = fs::remove_file(path("new"));
                    }
                }
            });
            while opened < 200 || refused < 200 {
                match open(root.path(), "/name") {
                    Ok(found) => {
                        assert_eq!(io::read_to_string(found.file).expect("text"), "real");
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
