//! The debuginfod protocol: `GET SERVER/buildid/BUILDID/debuginfo` (debuginfod(8), "WEBAPI").

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use thiserror::Error;
use ureq::Agent;
use ureq::tls::TlsConfig;

use super::super::debug_file::BuildId;
use super::cache::{Cache, PartialFile};
use super::settings::DebuginfodSettings;
use memleak_base::hosts;

/// Number of bytes that a server must send within the timeout.
const FIRST_BYTES: u64 = 100 << 10;

pub(super) struct Client {
    agent: Agent,
    /// Servers that fail are removed: each would take as long to fail for the next file.
    settings: DebuginfodSettings,
    cache: Cache,
    /// Set once a server has failed.
    has_given_up: bool,
}

/// Result of [`Client::fetch`].
pub(super) enum Answer {
    Fetched {
        /// Path in the cache.
        path: PathBuf,
        bytes: u64,
        /// Address of the server.
        server: String,
    },
    Missing,
    /// A server failed, or its file was unusable; this has been logged.
    Failed,
}

/// Reason why a server did not provide a file that it may have.
#[derive(Debug, Error)]
enum FetchError {
    #[error("{0}")]
    Http(#[from] ureq::Error),
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("the file is larger than {0} bytes (DEBUGINFOD_MAXSIZE)")]
    TooLarge(u64),
    #[error("no data for {0} seconds (DEBUGINFOD_TIMEOUT)")]
    Slow(u64),
    #[error("it sent the file of another object")]
    Another,
    #[error("cannot keep the file: {0}")]
    Keep(io::Error),
}

impl FetchError {
    /// True if the next request to the server would fail too.
    fn is_of_server(&self) -> bool {
        match self {
            Self::Http(_) | Self::Status(_) | Self::Slow(_) => true,
            Self::TooLarge(_) | Self::Another | Self::Keep(_) => false,
        }
    }
}

impl Client {
    /// Makes a client for the servers of `settings` that stores files in `cache`.
    pub(super) fn new(settings: DebuginfodSettings, cache: Cache) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(settings.timeout))
            .timeout_connect(Some(settings.timeout))
            .timeout_recv_response(Some(settings.timeout))
            .timeout_global(Some(settings.max_time))
            .user_agent(concat!("memleak/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls(&settings))
            .build();
        Self {
            agent: hosts::agent(config),
            settings,
            cache,
            has_given_up: false,
        }
    }

    /// True if a server is left.
    pub(super) fn has_servers(&self) -> bool {
        !self.settings.servers.is_empty()
    }

    /// Fetches the debug file of the object with this build-id, from the first server that has it. Increments
    /// `progress` for each request and each read.
    pub(super) fn fetch(&mut self, id: &BuildId, progress: &AtomicU64) -> Answer {
        let mut failed = self.has_given_up;
        for server in self.settings.servers.clone() {
            progress.fetch_add(1, Ordering::Relaxed);
            match self.fetch_from(&server, id, progress) {
                Ok(Some((path, bytes))) => return Answer::Fetched { path, bytes, server },
                Ok(None) => continue,
                Err(error) if error.is_of_server() => {
                    tracing::warn!("debuginfod: {server}: {error}; it is not asked again");
                    self.settings.servers.retain(|other| *other != server);
                    self.has_given_up = true;
                }
                Err(error) => tracing::warn!("debuginfod: {server}: build {id}: {error}"),
            }
            failed = true;
        }
        if failed {
            return Answer::Failed;
        }
        if let Err(error) = self.cache.note_missing(id) {
            tracing::debug!("debuginfod: cannot store in the cache that no server has the file: {error}");
        }
        Answer::Missing
    }

    fn fetch_from(
        &self,
        server: &str,
        id: &BuildId,
        progress: &AtomicU64,
    ) -> Result<Option<(PathBuf, u64)>, FetchError> {
        let address = format!("{server}/buildid/{id}/debuginfo");
        let mut response = self.agent.get(&address).call()?;
        match response.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            other => return Err(FetchError::Status(other)),
        }
        let max = self.settings.max_size;
        if response
            .body()
            .content_length()
            .is_some_and(|length| length > max)
        {
            return Err(FetchError::TooLarge(max));
        }
        let mut arriving = self.cache.arriving(id).map_err(FetchError::Keep)?;
        let body = response.body_mut().as_reader();
        let bytes = self.receive(body, &mut arriving, progress)?;
        if !id.is_of(&arriving.file) {
            return Err(FetchError::Another);
        }
        let kept = arriving.file.set_permissions(Permissions::from_mode(0o400));
        let path = kept.and_then(|()| arriving.keep()).map_err(FetchError::Keep)?;
        Ok(Some((path, bytes)))
    }

    /// Writes a file as it is received, and returns its size.
    fn receive(
        &self,
        mut body: impl Read,
        arriving: &mut PartialFile,
        progress: &AtomicU64,
    ) -> Result<u64, FetchError> {
        let began = Instant::now();
        let mut buffer = vec![0; 64 << 10];
        let mut received = 0;
        loop {
            let length = body.read(&mut buffer).map_err(ureq::Error::from)?;
            if length == 0 {
                return Ok(received);
            }
            received += length as u64;
            progress.fetch_add(1, Ordering::Relaxed);
            if received > self.settings.max_size {
                return Err(FetchError::TooLarge(self.settings.max_size));
            }
            if received < FIRST_BYTES && began.elapsed() > self.settings.timeout {
                return Err(FetchError::Slow(self.settings.timeout.as_secs()));
            }
            arriving
                .file
                .write_all(&buffer[..length])
                .map_err(FetchError::Keep)?;
        }
    }
}

/// TLS with the system's trusted certificates, if a server uses https: a company's server may have a
/// certificate of the company's own authority.
fn tls(settings: &DebuginfodSettings) -> TlsConfig {
    let is_needed = settings.servers.iter().any(|server| server.starts_with("https:"));
    hosts::tls(is_needed.then(|| hosts::system_certificates("debuginfod")))
}
