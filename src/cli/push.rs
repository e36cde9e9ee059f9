//! Checks the flags about pushing.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::export::ExportArgs;
use crate::sinks::export::SettingsError;
use crate::sinks::export::push::{Given, Secret, Settings};

impl ExportArgs {
    /// Settings for pushing; `None` without --push.
    pub(super) fn push(self) -> Result<Option<Settings>, SettingsError> {
        let given = self.flags_of_push().next();
        let Some(url) = self.push else {
            return given.map_or(Ok(None), |flag| Err(SettingsError::NothingPushed(flag)));
        };
        let mut headers = self.push_header;
        if let Some(path) = &self.push_header_file {
            headers.extend(headers_in(path)?);
        }
        Settings::new(Given {
            url,
            api: self.push_api.unwrap_or_default(),
            labels: self.push_label,
            tenant: self.push_tenant,
            headers,
            token_file: self.push_token_file,
            token: token_of_environment(),
            user: self.push_user,
            authority: self.push_ca,
        })
        .map(Some)
    }
}

/// Headers in a file: its lines, without empty ones and comments (`#`). Reads at most 64 KiB.
fn headers_in(path: &Path) -> Result<Vec<String>, SettingsError> {
    const MAX_BYTES: u64 = 64 << 10;
    let file = File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    });
    let text = file.map_err(|error| SettingsError::HeaderFile {
        path: path.display().to_string(),
        why: error.to_string(),
    })?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// A token in the environment, if there is one.
fn token_of_environment() -> Option<Secret> {
    let token = std::env::var(crate::sinks::export::TOKEN_VARIABLE).ok()?;
    let token = token.trim();
    (!token.is_empty()).then(|| Secret::new(token))
}
