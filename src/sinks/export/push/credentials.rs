//! Credentials for the store. They are never logged, and none has to be on the command line, which other
//! users can read.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::sinks::export::ExportError;

/// Maximum number of bytes of a token file.
const MAX_BYTES: u64 = 64 << 10;

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Source of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Given by value.
    Known(Secret),
    /// A file that is read again for each request, as it may be renewed at any time.
    File(PathBuf),
}

/// Bearer token, or user name and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The user name, if the token is a password (Basic authentication).
    pub(super) user: Option<String>,
    pub(super) token: Token,
}

/// Credentials with the token as it was last read.
pub(super) struct CachedCredentials {
    credentials: Credentials,
    last: Secret,
}

impl CachedCredentials {
    pub(super) fn open(credentials: Credentials) -> Result<Self, ExportError> {
        let last = match &credentials.token {
            Token::Known(token) => token.clone(),
            Token::File(path) => read(path).map_err(|why| ExportError::Token {
                path: path.display().to_string(),
                why,
            })?,
        };
        Ok(Self { credentials, last })
    }

    /// The value of the header `Authorization`. Keeps the last token if its file cannot be read.
    pub(super) fn authorization(&mut self) -> String {
        if let Token::File(path) = &self.credentials.token {
            match read(path) {
                Ok(token) => self.last = token,
                // The file may be half written.
                Err(why) => tracing::debug!("push: using the last token from {}: {why}", path.display()),
            }
        }
        let token = self.last.reveal();
        match &self.credentials.user {
            None => format!("Bearer {token}"),
            Some(user) => format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{token}"))),
        }
    }
}

/// Reads and trims the token in a file.
fn read(path: &PathBuf) -> Result<Secret, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    let token = text.trim();
    if token.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() as u64 > MAX_BYTES || !is_printable(token) {
        return Err("it is not one line of printable ASCII".to_owned());
    }
    Ok(Secret::new(token))
}

/// Returns whether a header can carry `text`.
pub(super) fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A token file is read again for each request, the last token stays if that fails, and `Debug` does not
    /// show it.
    #[test]
    fn tokens_in_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let credentials = |user: Option<&str>| Credentials {
            user: user.map(str::to_owned),
            token: Token::File(path.clone()),
        };
        for (text, problem) in [
            ("", "empty"),
            (" \n", "empty"),
            ("a\nb", "one line"),
            ("ä", "ASCII"),
        ] {
            fs::write(&path, text).expect("written");
            let error = CachedCredentials::open(credentials(None))
                .err()
                .expect("refused")
                .to_string();
            assert!(
                error.contains(problem) && error.contains("--push-token-file"),
                "{error}"
            );
        }
        fs::write(&path, "first\n").expect("written");
        let mut cached = CachedCredentials::open(credentials(None)).expect("a token");
        assert_eq!(cached.authorization(), "Bearer first");
        fs::write(&path, "second\n").expect("written");
        assert_eq!(cached.authorization(), "Bearer second");
        fs::remove_file(&path).expect("removed");
        assert_eq!(cached.authorization(), "Bearer second");
        let error = CachedCredentials::open(credentials(None))
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("No such file"), "{error}");
        fs::write(&path, "password").expect("written");
        // RFC 7617, 2: `Aladdin` with another password.
        let mut cached = CachedCredentials::open(credentials(Some("Aladdin"))).expect("a token");
        assert_eq!(cached.authorization(), "Basic QWxhZGRpbjpwYXNzd29yZA==");
        assert!(!format!("{:?}", Token::Known(Secret::new("hidden"))).contains("hidden"));
    }
}
