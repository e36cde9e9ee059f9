//! Settings from the environment variables and files that all debuginfod clients share
//! (debuginfod-client-config(7)).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leak_report::units::{self, TimeUnit};

/// Directory where distributions name their own servers; shells read it at login.
const SYSTEM_SERVERS: &str = "/etc/debuginfod";
/// Default time for a server to send the first 100 KB, by the same manual page.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Default time for a whole file. The manual page has no limit.
const MAX_TIME: Duration = Duration::from_secs(600);
/// Default maximum size of a file in bytes. The manual page has no limit; larger files would not fit in
/// memory.
const MAX_SIZE: u64 = 2 << 30;

/// Servers to use, and limits for the files fetched from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebuginfodSettings {
    /// Addresses in the order of use, without a trailing slash.
    pub servers: Vec<String>,
    /// Directory of the cache.
    pub cache: PathBuf,
    /// Maximum time for a server to answer and to send its first 100 KB, and without progress while a report
    /// waits.
    pub timeout: Duration,
    /// Maximum time for a whole file.
    pub max_time: Duration,
    /// Maximum size of a file in bytes.
    pub max_size: u64,
}

impl DebuginfodSettings {
    /// Reads the environment and the system's files; `None` if they name no server.
    pub fn of_environment() -> Option<Self> {
        let system = || system_servers(Path::new(SYSTEM_SERVERS));
        Self::new(|name| std::env::var_os(name), system, |path| path.is_dir())
    }

    fn new(
        variable: impl Fn(&str) -> Option<OsString>,
        system_servers: impl FnOnce() -> String,
        is_directory: impl Fn(&Path) -> bool,
    ) -> Option<Self> {
        let given = variable("DEBUGINFOD_URLS").filter(|given| !given.is_empty());
        // `sudo` drops the variable, but the files that the login shell made it from can be read.
        let given = given.map_or_else(system_servers, |given| given.to_string_lossy().into_owned());
        let servers: Vec<String> = given
            .split_whitespace()
            // Other words are policies about signatures of packages.
            .filter(|word| word.starts_with("http://") || word.starts_with("https://"))
            .map(|word| word.trim_end_matches('/').to_owned())
            .collect();
        let text = |name| variable(name)?.into_string().ok();
        let time = |name| {
            let time = units::parse_duration(&text(name)?, TimeUnit::SECOND).ok();
            time.filter(|time| !time.is_zero())
        };
        let size = |name| {
            let size = units::parse_bytes(&text(name)?).ok();
            size.filter(|&size| size > 0)
        };
        (!servers.is_empty()).then(|| Self {
            servers,
            cache: cache(&variable, is_directory),
            timeout: time("DEBUGINFOD_TIMEOUT").unwrap_or(TIMEOUT),
            max_time: time("DEBUGINFOD_MAXTIME").unwrap_or(MAX_TIME),
            max_size: size("DEBUGINFOD_MAXSIZE").unwrap_or(MAX_SIZE),
        })
    }
}

/// Words of all `*.urls` files in `directory`.
fn system_servers(directory: &Path) -> String {
    let Ok(entries) = fs::read_dir(directory) else {
        return String::new();
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "urls"));
    files.sort();
    let texts: Vec<String> = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    texts.join("\n")
}

fn cache(variable: impl Fn(&str) -> Option<OsString>, is_directory: impl Fn(&Path) -> bool) -> PathBuf {
    let path = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(given) = path("DEBUGINFOD_CACHE_PATH") {
        return given;
    }
    let home = path("HOME").unwrap_or_else(|| PathBuf::from("/"));
    let first_clients = home.join(".debuginfod_client_cache");
    if is_directory(&first_clients) {
        return first_clients;
    }
    let caches = path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
    caches.join("debuginfod_client")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)], system: &str) -> Option<DebuginfodSettings> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let is_directory = |path: &Path| path == Path::new("/old/.debuginfod_client_cache");
        DebuginfodSettings::new(variable, || system.to_owned(), is_directory)
    }

    /// Servers are read from the variable, else from the system's files; words that are not addresses are
    /// ignored.
    #[test]
    fn servers() {
        let servers = |variables: &[_], system| settings(variables, system).map(|settings| settings.servers);
        let some = |servers: &[&str]| Some(servers.iter().map(ToString::to_string).collect::<Vec<_>>());
        let given = "https://a.example/ ima:enforcing\thttp://localhost:8002 file:///srv";
        assert_eq!(
            servers(&[("DEBUGINFOD_URLS", given)], "https://b.example"),
            some(&["https://a.example", "http://localhost:8002"])
        );
        assert_eq!(
            servers(&[("DEBUGINFOD_URLS", "")], "https://b.example\n"),
            some(&["https://b.example"])
        );
        assert_eq!(servers(&[], ""), None);
        assert_eq!(
            servers(&[("DEBUGINFOD_URLS", "localhost")], "https://b.example"),
            None
        );
    }

    /// Files are kept where other clients of the same user keep theirs.
    #[test]
    fn caches() {
        for (variables, expected) in [
            (&[("HOME", "/h")][..], "/h/.cache/debuginfod_client"),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/debuginfod_client",
            ),
            (
                &[("HOME", "/old"), ("XDG_CACHE_HOME", "/x")],
                "/old/.debuginfod_client_cache",
            ),
            (&[("HOME", "/old"), ("DEBUGINFOD_CACHE_PATH", "/c")], "/c"),
            (&[], "/.cache/debuginfod_client"),
        ] {
            let found = settings(variables, "http://s").map(|settings| settings.cache);
            assert_eq!(found, Some(PathBuf::from(expected)), "{variables:?}");
        }
    }

    /// Limits can be set; a value that is not a number, or means no limit, leaves the default.
    #[test]
    fn limits() {
        let limits = |value: &str| {
            let names = ["DEBUGINFOD_TIMEOUT", "DEBUGINFOD_MAXTIME", "DEBUGINFOD_MAXSIZE"];
            let settings = settings(&names.map(|name| (name, value)), "http://s").expect("a server");
            (settings.timeout, settings.max_time, settings.max_size)
        };
        let seven = Duration::from_secs(7);
        assert_eq!(limits("7"), (seven, seven, 7));
        for value in ["0", "-1", "x", ""] {
            assert_eq!(limits(value), (TIMEOUT, MAX_TIME, MAX_SIZE), "{value:?}");
        }
    }
}
