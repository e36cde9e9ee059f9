//! Files that were fetched, in the directory and the layout that all clients of debuginfod share: `BUILDID/debuginfo`,
//! empty for what no server had (debuginfod-client-config(7)).

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::geteuid;

use super::super::debug_file::BuildId;

/// Files that say, in seconds, how the cache is kept, and what holds without them.
const MISS: (&str, u64) = ("cache_miss_s", 600);
const UNUSED: (&str, u64) = ("max_unused_age_s", 604_800);
const INTERVAL: (&str, u64) = ("cache_clean_interval_s", 86_400);

/// The directory.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    directory: PathBuf,
}

/// What is known of an object's debug file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cached {
    /// It lies here.
    File(PathBuf),
    /// No server had it a short time ago.
    Missing,
    /// Nothing.
    Nothing,
}

/// A file on its way into the cache; gone if it does not get there.
pub(super) struct Arriving {
    /// To be filled.
    pub(super) file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Cache {
    /// The cache in `directory`, which is made if it is missing.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        make_directory(directory)?;
        check_ours(&fs::metadata(directory)?)?;
        Ok(Self {
            directory: std::path::absolute(directory)?,
        })
    }

    /// What is known of the debug file of the object with this build-id.
    pub(super) fn get(&self, id: &BuildId) -> Cached {
        let path = self.path(id);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if !metadata.is_file() => Cached::Nothing,
            Ok(metadata) if metadata.len() > 0 => Cached::File(path),
            Ok(metadata) if is_younger(metadata.modified(), self.seconds(MISS)) => Cached::Missing,
            Ok(_) | Err(_) => Cached::Nothing,
        }
    }

    /// A place for the debug file of the object with this build-id, to be filled.
    pub(super) fn arriving(&self, id: &BuildId) -> io::Result<Arriving> {
        let target = self.path(id);
        let path = target.with_extension(format!("{}", std::process::id()));
        make_directory(path.parent().unwrap_or(&self.directory))?;
        // One of a process that had our number and was killed.
        _ = fs::remove_file(&path);
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Arriving { file, path, target })
    }

    /// Notes that no server has it.
    pub(super) fn note_missing(&self, id: &BuildId) -> io::Result<()> {
        let arriving = self.arriving(id)?;
        arriving.file.set_permissions(Permissions::from_mode(0o000))?;
        arriving.keep().map(|_| ())
    }

    /// Removes what was not used for long, from time to time.
    pub(super) fn clean(&self) {
        let interval = self.directory.join(INTERVAL.0);
        let last = fs::metadata(&interval).and_then(|metadata| metadata.modified());
        if is_younger(last, self.seconds(INTERVAL)) {
            return;
        }
        // Its time is that of the last cleaning.
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
                // Other clients clean too. A directory with more in it stays.
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

impl Arriving {
    /// Puts the file into its place, and says where that is.
    pub(super) fn keep(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.path, &self.target)?;
        Ok(std::mem::take(&mut self.target))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // Kept ones are not there any more.
        _ = fs::remove_file(&self.path);
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Who else can make files there can have us write to others by links, and believe that a server has sent what is his.
fn check_ours(directory: &Metadata) -> io::Result<()> {
    let why = match directory.uid() {
        owner if owner != geteuid().as_raw() => format!("it belongs to user {owner}"),
        _ if directory.mode() & 0o022 != 0 => "others may write there".to_owned(),
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Whether a file's time is less than `age` ago. What has none is old; clocks that were set back make young.
fn is_younger(time: io::Result<SystemTime>, age: Duration) -> bool {
    time.is_ok_and(|time| time.elapsed().map_or(true, |elapsed| elapsed < age))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// A directory that is another's, or in which others may write, is refused; one that is made is ours alone.
    #[test]
    fn whose_directory_it_is_as_root() {
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
