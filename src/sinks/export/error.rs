//! Errors of exports.

use std::io;

use thiserror::Error;

use super::metrics::Address;

/// The environment variable with the bearer token or password. It is not a setting: a flag would be visible
/// in the process list.
pub(crate) const TOKEN_VARIABLE: &str = "MEMLEAK_PUSH_TOKEN";

/// Invalid export options.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// Not the URL of a store. The message leaves the URL out: it may contain a password.
    #[error(
        "--push needs the address of a server, for example http://localhost:4040, without anything behind a `?` or `#`"
    )]
    Url,
    #[error("{0} needs --push: add --push URL, or leave it out")]
    NothingPushed(&'static str),
    #[error(
        "--push-label `{0}` is not NAME=VALUE with a name of letters, digits and `_` (with --push-api otlp also `.`) that \
         begins with neither a digit nor `__`"
    )]
    Label(String),
    #[error("--push-label `{0}` is given twice: give each label once")]
    LabelTwice(String),
    /// Not a header. The message leaves the text out: it may be a password.
    #[error("--push-header {0} is not 'NAME: VALUE' with a name and a value that HTTP can carry")]
    Header(String),
    #[error("cannot read the headers in `{path}` (--push-header-file): {why}")]
    HeaderFile { path: String, why: String },
    /// A header that memleak sets itself.
    #[error("--push-header {0} is set by memleak itself: leave it out")]
    OwnHeader(String),
    #[error(
        "{0} and {1} both say who pushes: give only one of them (a user name of --push-user goes with a token of \
         --push-token-file or MEMLEAK_PUSH_TOKEN)"
    )]
    TwoIdentities(&'static str, &'static str),
    /// A user name without a password.
    #[error("--push-user needs a password: give it by --push-token-file FILE or in MEMLEAK_PUSH_TOKEN")]
    NoPassword,
    #[error("{0} cannot be sent in an HTTP header: it must be one line of printable ASCII")]
    NotPrintable(&'static str),
    #[error(
        "--metrics `{0}` is not an address to listen on: give PORT or :PORT for this machine alone, or IP:PORT, for \
         example 127.0.0.1:9464"
    )]
    Address(String),
    #[error("{0} needs --metrics: add --metrics ADDRESS, or leave it out")]
    NothingServed(&'static str),
    /// Reports are not made (`-t`), so there is nothing to export.
    #[error("--push and --metrics need reports, and -t makes none in this format: use only one of them")]
    NoReports,
}

/// Failure to start an export.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    #[error("cannot read the token in `{path}` (--push-token-file): {why}")]
    Token { path: String, why: String },
    #[error("cannot use the certificates in `{path}` (--push-ca): {why}")]
    Authority { path: String, why: String },
    #[error("cannot serve metrics on {address}: {error}; give --metrics another address")]
    Listen { address: Address, error: io::Error },
    #[error("cannot start a thread")]
    Thread(#[from] io::Error),
}
