//! Cache of fetched files, in the directory and layout that all debuginfod clients share:
//! `BUILDID/debuginfo`, empty if no server had the file (debuginfod-client-config(7)).

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::geteuid;

use super::super::debug_file::BuildId;

/// Files with the cache's settings in seconds, and their defaults.
const MISS: (&str, u64) = ("cache_miss_s", 600);
const UNUSED: (&str, u64) = ("max_unused_age_s", 604_800);
const INTERVAL: (&str, u64) = ("cache_clean_interval_s", 86_400);

#[derive(Clone, Debug)]
pub(super) struct Cache {
    directory: PathBuf,
}

/// Cached knowledge of an object's debug file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cached {
    /// Path of the file.
    File(PathBuf),
    /// No server had it less than `cache_miss_s` ago.
    Missing,
    /// The cache has no entry, or an expired one.
    Nothing,
}

/// A file being written to the cache; removed on drop unless kept.
pub(super) struct PartialFile {
    pub(super) file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Cache {
    /// Opens the cache in `directory`, which is created if missing.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        make_directory(directory)?;
        check_ours(&fs::metadata(directory)?)?;
        Ok(Self {
            directory: std::path::absolute(directory)?,
        })
    }

    /// Looks up the debug file of the object with this build-id.
    pub(super) fn get(&self, id: &BuildId) -> Cached {
        let path = self.path(id);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if !metadata.is_file() => Cached::Nothing,
            Ok(metadata) if metadata.len() > 0 => Cached::File(path),
            Ok(metadata) if is_younger(metadata.modified(), self.seconds(MISS)) => Cached::Missing,
            Ok(_) | Err(_) => Cached::Nothing,
        }
    }

    /// Creates a temporary file for the debug file of the object with this build-id.
    pub(super) fn arriving(&self, id: &BuildId) -> io::Result<PartialFile> {
        let target = self.path(id);
        let path = target.with_extension(format!("{}", std::process::id()));
        make_directory(path.parent().unwrap_or(&self.directory))?;
        // Left by a process with the same pid that was killed.
        _ = fs::remove_file(&path);
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(PartialFile { file, path, target })
    }

    /// Stores that no server has the file.
    pub(super) fn note_missing(&self, id: &BuildId) -> io::Result<()> {
        let arriving = self.arriving(id)?;
        arriving.file.set_permissions(Permissions::from_mode(0o000))?;
        arriving.keep().map(|_| ())
    }

    /// Removes files that were not used for long, at most once per `cache_clean_interval_s`.
    pub(super) fn clean(&self) {
        let interval = self.directory.join(INTERVAL.0);
        let last = fs::metadata(&interval).and_then(|metadata| metadata.modified());
        if is_younger(last, self.seconds(INTERVAL)) {
            return;
        }
        // The file's modification time is the time of the last cleaning.
        let text = self.seconds(INTERVAL).as_secs().to_string();
        let entries = fs::write(&interval, text).and_then(|()| fs::read_dir(&self.directory));
        let unused = self.seconds(UNUSED);
        for entry in entries.into_iter().flatten().flatten() {
            let is_hexadecimal = |name: &str| name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !entry.file_name().to_str().is_some_and(is_hexadecimal) {
                continue;
            }
            let file = entry.path().join("debuginfo");
            let metadata = fs::symlink_metadata(&file);
            if metadata.is_ok_and(|metadata| metadata.is_file() && !is_younger(metadata.accessed(), unused)) {
                // Other clients clean too. A directory with other content stays.
                _ = fs::remove_file(&file).and_then(|()| fs::remove_dir(entry.path()));
            }
        }
    }

    fn path(&self, id: &BuildId) -> PathBuf {
        self.directory.join(id.to_string()).join("debuginfo")
    }

    fn seconds(&self, (name, otherwise): (&str, u64)) -> Duration {
        let text = fs::read_to_string(self.directory.join(name));
        let given = text.ok().and_then(|text| text.trim().parse().ok());
        Duration::from_secs(given.unwrap_or(otherwise))
    }
}

impl PartialFile {
    /// Moves the file to its final path, which is returned.
    pub(super) fn keep(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.path, &self.target)?;
        Ok(std::mem::take(&mut self.target))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // A kept file has been renamed already.
        _ = fs::remove_file(&self.path);
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Fails unless the directory is owned and writable by this user only. Others who can create files there
/// could redirect writes by links, and forge debug files.
fn check_ours(directory: &Metadata) -> io::Result<()> {
    let why = match directory.uid() {
        owner if owner != geteuid().as_raw() => format!("it belongs to user {owner}"),
        _ if directory.mode() & 0o022 != 0 => "others may write there".to_owned(),
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// True if a file's time is less than `age` ago. A file without a time is old; one with a time in the future
/// (the clock was set back) is young.
fn is_younger(time: io::Result<SystemTime>, age: Duration) -> bool {
    time.is_ok_and(|time| time.elapsed().map_or(true, |elapsed| elapsed < age))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// A directory of another user, or writable by others, is refused; a new one is created for this user
    /// alone.
    #[test]
    fn other_users_cache_directories_are_refused_as_root() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/b");
        let refusal = || Cache::open(&path).err().map(|error| error.to_string());
        assert_eq!(refusal(), None);
        assert_eq!(fs::metadata(&path).expect("made").mode() & 0o777, 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).expect("our own");
        assert_eq!(refusal().as_deref(), Some("others may write there"));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("our own");
        assert_eq!(refusal(), None);
        chown(&path, Some(4711), None).expect("as root");
        assert_eq!(refusal().as_deref(), Some("it belongs to user 4711"));
    }
}
