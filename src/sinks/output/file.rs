//! Output files: readable only by their owner, who is the user that called sudo, if there is one.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{Gid, Uid, fchown, linkat};
use tempfile::{Builder, NamedTempFile};

use super::error::{OutputError, remedy};
use super::existing::ExistingFile;
use crate::process::launch;

/// File that output is written to.
pub(crate) enum File {
    /// Has its name from the start.
    Open {
        file: fs::File,
        /// True while it still has its previous content, until something is written.
        is_old: bool,
    },
    /// Has no name until it is complete: nothing is left if memleak is killed.
    Nameless {
        file: fs::File,
        path: PathBuf,
        overwrite: bool,
    },
    /// Has a temporary name until it is complete, on file systems without `O_TMPFILE`.
    Hidden {
        file: NamedTempFile,
        path: PathBuf,
        overwrite: bool,
    },
}

impl File {
    /// Creates the file, or opens an existing one if `overwrite` is set, which is truncated when something is
    /// written.
    pub(super) fn open(path: &Path, overwrite: bool) -> Result<Self, OutputError> {
        let existing = ExistingFile::at(path)?;
        // Devices and pipes are written to: nothing in them is lost.
        let overwrite = overwrite || existing.as_ref().is_some_and(|existing| !existing.is_file());
        let is_old = existing.as_ref().is_some_and(ExistingFile::is_file);
        let file = make(path, existing, overwrite, OpenOptions::new().write(true))?;
        Ok(Self::Open { file, is_old })
    }

    /// Creates a file that is also read back and can be replaced by another; or, with `overwrite`, opens an
    /// existing one without truncating it. Returns whether it was created.
    pub(crate) fn open_to_rewrite(path: &Path, overwrite: bool) -> Result<(fs::File, bool), OutputError> {
        let existing = ExistingFile::at(path)?;
        if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
            let error = io::Error::other("it is not a regular file");
            return Err(refused(path, error));
        }
        let is_new = existing.is_none();
        let file = make(
            path,
            existing,
            overwrite,
            OpenOptions::new().read(true).write(true),
        )?;
        Ok((file, is_new))
    }

    /// Creates a file beside `path` that will replace it.
    pub(crate) fn prepare(path: &Path, overwrite: bool) -> Result<Self, OutputError> {
        let existing = ExistingFile::at(path)?;
        // Replaces the target of a link, not the link.
        let path = match &existing {
            Some(existing) if !existing.is_file() => return Self::open(path, true),
            Some(_) if !overwrite => return Err(OutputError::Exists(path.to_owned())),
            Some(existing) => existing.path.clone(),
            None => path.to_owned(),
        };
        let directory = directory_of(&path);
        if let Ok(file) = nameless(directory) {
            return Ok(Self::Nameless {
                file: owned(file).map_err(|error| refused(&path, error))?,
                path,
                overwrite,
            });
        }
        // tempfile's own opening is not used: its errors name a temporary file that the user does not know.
        let make = |path: &Path| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create_new(true).mode(0o600);
            options.open(path)
        };
        let hidden = Builder::new().prefix(".memleak-").make_in(directory, make);
        let owned = hidden.and_then(|file| owned(file.as_file().try_clone()?).map(|_| file));
        Ok(Self::Hidden {
            file: owned.map_err(|error| refused(&path, error))?,
            path,
            overwrite,
        })
    }

    /// Gives the complete file its name.
    pub(crate) fn publish(self) -> Result<fs::File, OutputError> {
        let (file, path, overwrite) = match self {
            Self::Open { file, .. } => return Ok(file),
            Self::Nameless {
                file,
                path,
                overwrite,
            } => {
                let named = link_to_path(&file, &path, overwrite);
                return named.map(|()| file).map_err(|error| refused(&path, error));
            }
            Self::Hidden {
                file,
                path,
                overwrite,
            } => (file, path, overwrite),
        };
        let published = match overwrite {
            true => file.persist(&path),
            false => file.persist_noclobber(&path),
        };
        published.map_err(|failed| refused(&path, failed.error))
    }
}

impl File {
    /// Removes the previous content, if it is still there.
    fn empty(&mut self) -> io::Result<()> {
        if let Self::Open { file, is_old } = self
            && mem::take(is_old)
        {
            return file.set_len(0);
        }
        Ok(())
    }

    /// Writes everything or nothing, so that the file stays readable when there is no more room.
    pub(super) fn write_whole(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.empty()?;
        let begin = match self {
            Self::Open { file, .. } if file.metadata()?.is_file() => Some(file.stream_position()?),
            Self::Open { .. } | Self::Nameless { .. } | Self::Hidden { .. } => None,
        };
        let written = write(self);
        if let (Err(_), Some(begin), Self::Open { file, .. }) = (&written, begin, self) {
            // Errors are ignored: the error of the write itself is the one that is reported.
            _ = file
                .set_len(begin)
                .and_then(|()| file.seek(SeekFrom::Start(begin)));
        }
        written
    }
}

/// Adds the place and the remedy to a write error. A broken pipe is returned unchanged.
pub(super) fn explained(place: &str, error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return error;
    }
    let text = format!("cannot write {place}: {error}{}", remedy(&error));
    io::Error::new(error.kind(), text)
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.empty()?;
        match self {
            Self::Open { file, .. } | Self::Nameless { file, .. } => file.write(bytes),
            // tempfile's `write` would name the temporary file in errors.
            Self::Hidden { file, .. } => file.as_file_mut().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Open { file, .. } | Self::Nameless { file, .. } => file.flush(),
            Self::Hidden { file, .. } => file.as_file_mut().flush(),
        }
    }
}

/// Opens an existing file if `overwrite` is set, or creates one.
fn make(
    path: &Path,
    existing: Option<ExistingFile>,
    overwrite: bool,
    options: &mut OpenOptions,
) -> Result<fs::File, OutputError> {
    let file = match existing {
        Some(_) if !overwrite => return Err(OutputError::Exists(path.to_owned())),
        Some(existing) => existing.open(options),
        // `create_new` also refuses a link that was created meanwhile.
        None => {
            let new = options.create_new(true).mode(0o600);
            new.open(path).and_then(owned)
        }
    };
    file.map_err(|error| refused(path, error))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Creates a file that vanishes when it is closed, unless it is given a name.
fn nameless(directory: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options.custom_flags(libc::O_TMPFILE).open(directory)
}

fn link_to_path(file: &fs::File, path: &Path, overwrite: bool) -> io::Result<()> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let name = |path: &Path| {
        let named = linkat(AT_FDCWD, &*link, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW);
        named.map_err(io::Error::from)
    };
    if !overwrite {
        return name(path);
    }
    // `linkat` cannot replace a file, but a rename can: so the file gets a temporary name first.
    let passing = Builder::new()
        .prefix(".memleak-")
        .make_in(directory_of(path), name)?;
    passing.persist(path).map_err(|failed| failed.error)
}

fn refused(path: &Path, error: io::Error) -> OutputError {
    let path = path.to_owned();
    match error.kind() == io::ErrorKind::AlreadyExists {
        true => OutputError::Exists(path),
        false => OutputError::File { path, error },
    }
}

/// Gives a new file to the user who called sudo.
fn owned(file: fs::File) -> io::Result<fs::File> {
    if let Some((user, group)) = launch::invoking_user()? {
        fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn text(path: &Path) -> Option<String> {
        fs::read_to_string(path).ok()
    }

    /// An existing file is unchanged unless overwriting is requested; only its owner can read a new one.
    #[test]
    fn existing_files_are_not_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("leaks.txt");
        for make in [File::open, File::prepare] {
            fs::write(&path, "old").expect("a file");
            assert!(matches!(make(&path, false), Err(OutputError::Exists(named)) if named == path));
            assert_eq!(text(&path).as_deref(), Some("old"));
            let mut file = make(&path, true).expect("it is replaced");
            file.write_all(b"new").expect("written");
            file.publish().expect("published");
            assert_eq!(text(&path).as_deref(), Some("new"));
            fs::remove_file(&path).expect("removed");
            let mut file = make(&path, false).expect("it is made");
            file.write_all(b"made").expect("written");
            file.publish().expect("published");
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!((text(&path).as_deref(), mode & 0o777), (Some("made"), 0o600));
            fs::remove_file(&path).expect("removed");
            assert!(make(Path::new("/dev/null"), false).is_ok());
        }
    }

    /// An existing file keeps its content until there is a report, which may be empty.
    #[test]
    fn existing_files_are_kept_until_there_is_a_report() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("leaks.folded");
        fs::write(&path, "old and long").expect("a file");
        drop(File::open(&path, true).expect("it is opened"));
        assert_eq!(text(&path).as_deref(), Some("old and long"));
        let mut file = File::open(&path, true).expect("it is opened");
        for (report, expected) in [("", ""), ("new", "new"), (" and more", "new and more")] {
            let written = file.write_whole(|out| out.write_all(report.as_bytes()));
            written.expect("written");
            assert_eq!(text(&path).as_deref(), Some(expected));
        }
    }

    /// A document has its name only once it is complete, and does not replace a file that was created there
    /// meanwhile; an unfinished one leaves nothing.
    #[test]
    fn documents_appear_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("leaks.svg");
        let mut file = File::prepare(&path, false).expect("prepared");
        file.write_all(b"half").expect("written");
        assert_eq!(text(&path), None);
        drop(file);
        let left = fs::read_dir(directory.path()).expect("readable").count();
        assert_eq!(left, 0);
        let file = File::prepare(&path, false).expect("prepared");
        fs::write(&path, "another's").expect("a file");
        assert!(matches!(file.publish(), Err(OutputError::Exists(_))));
        assert_eq!(text(&path).as_deref(), Some("another's"));
    }

    /// An error in creating a file names the file.
    #[test]
    fn errors_name_the_missing_directory() {
        let path = Path::new("/nonexistent/leaks.txt");
        for make in [File::open, File::prepare] {
            let error = make(path, false).err().expect("refused").to_string();
            assert!(error.contains("/nonexistent/leaks.txt"), "{error}");
        }
    }
}
