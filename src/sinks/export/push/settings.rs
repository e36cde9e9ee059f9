//! Validates the push options.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use ureq::http::uri::Scheme;
use ureq::http::{HeaderName, HeaderValue, Uri};

pub use super::api::Api;
use super::credentials::{Credentials, Secret, Token, is_printable};
use super::envelope::METRIC_NAME;
use crate::sinks::export::SettingsError;

/// The header with the tenant for Pyroscope and the other Grafana databases.
pub(super) const TENANT: &str = "x-scope-orgid";
/// Headers that memleak or its HTTP client sets.
const OWN_HEADERS: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "expect",
    "accept",
    "connect-protocol-version",
];

/// Flags and variables as they were given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// URL of the server, possibly with a user name and a password.
    pub url: String,
    pub api: Api,
    /// Labels, each `NAME=VALUE`.
    pub labels: Vec<String>,
    /// Value of the header `X-Scope-OrgID`.
    pub tenant: Option<String>,
    /// Headers, each `NAME: VALUE`.
    pub headers: Vec<String>,
    /// File with a token or password.
    pub token_file: Option<PathBuf>,
    /// Token or password from the environment.
    pub token: Option<Secret>,
    /// User name; makes the token a password.
    pub user: Option<String>,
    /// PEM file with the certificates to trust.
    pub authority: Option<PathBuf>,
}

/// The validated options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub api: Api,
    /// URL of the server, without credentials and without a slash at its end.
    pub server: String,
    /// Labels added to all profiles.
    pub labels: BTreeMap<String, String>,
    /// Headers added to all requests, including the tenant's.
    pub(super) headers: Vec<(String, Secret)>,
    pub(super) credentials: Option<Credentials>,
    /// PEM file with the certificates to trust instead of the system's.
    pub authority: Option<PathBuf>,
    /// True if the server is on this machine.
    pub(super) is_local: bool,
}

impl Settings {
    /// Validates `given`.
    pub fn new(given: Given) -> Result<Self, SettingsError> {
        let address = Address::parse(&given.url, given.api)?;
        let headers = headers(&given)?;
        let credentials = credentials(&given, address.user, &headers)?;
        Ok(Self {
            api: given.api,
            server: address.server,
            labels: labels(&given.labels, given.api)?,
            headers,
            credentials,
            authority: given.authority,
            is_local: address.is_local,
        })
    }

    /// Returns whether credentials are sent unencrypted over a network.
    pub(super) fn tells_secrets_in_clear(&self) -> bool {
        let is_clear = !self.is_local && self.server.starts_with("http:");
        is_clear && (self.credentials.is_some() || self.headers.iter().any(|(name, _)| name != TENANT))
    }
}

/// A parsed server URL.
struct Address {
    server: String,
    /// User name and password from the URL.
    user: Option<(String, Option<Secret>)>,
    is_local: bool,
}

impl Address {
    fn parse(url: &str, api: Api) -> Result<Self, SettingsError> {
        let uri: Uri = url.parse().map_err(|_| SettingsError::Url)?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(SettingsError::Url);
        };
        let is_http = *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS;
        if !is_http || uri.query().is_some() || url.contains('#') || authority.host().is_empty() {
            return Err(SettingsError::Url);
        }
        let (user, host) = match authority.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user_of(user)?), host),
            None => (None, authority.as_str()),
        };
        // Documentation of stores names the full URL, so accept one with the API's path.
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix(api.path()).unwrap_or(path);
        Ok(Self {
            server: format!("{scheme}://{host}{path}"),
            user,
            is_local: is_loopback(authority.host()),
        })
    }
}

fn user_of(text: &str) -> Result<(String, Option<Secret>), SettingsError> {
    let decoded = |text: &str| match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(SettingsError::Url),
    };
    match text.split_once(':') {
        Some((user, password)) => Ok((decoded(user)?, Some(Secret::new(&decoded(password)?)))),
        None => Ok((decoded(text)?, None)),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

fn labels(given: &[String], api: Api) -> Result<BTreeMap<String, String>, SettingsError> {
    let mut labels = BTreeMap::new();
    for text in given {
        let label = text.split_once('=').filter(|(name, _)| is_label_name(name, api));
        let (name, value) = label.ok_or_else(|| SettingsError::Label(text.clone()))?;
        if labels.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(SettingsError::LabelTwice(name.to_owned()));
        }
    }
    Ok(labels)
}

/// Returns whether `name` is a label name that Prometheus, and so all stores, accept, or, for a collector,
/// one of OpenTelemetry's attributes, whose parts a dot separates. Names that begin with `__` are reserved.
fn is_label_name(name: &str, api: Api) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || api == Api::Otlp && byte == b'.';
    debug_assert!(METRIC_NAME.starts_with("__"));
    name.bytes().all(is_part)
        && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && !name.starts_with("__")
}

fn headers(given: &Given) -> Result<Vec<(String, Secret)>, SettingsError> {
    let mut headers = Vec::new();
    for text in &given.headers {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        let shown = || match text.contains(':') {
            true => format!("`{name}`"),
            // Without a colon, the text may be the secret value.
            false => "without a colon".to_owned(),
        };
        let is_right = HeaderName::from_bytes(name.as_bytes()).is_ok()
            && HeaderValue::from_str(value.trim()).is_ok()
            && text.contains(':');
        if !is_right {
            return Err(SettingsError::Header(shown()));
        }
        let name = name.to_ascii_lowercase();
        if OWN_HEADERS.contains(&name.as_str()) {
            return Err(SettingsError::OwnHeader(shown()));
        }
        headers.push((name, Secret::new(value.trim())));
    }
    if let Some(tenant) = &given.tenant {
        if tenant.is_empty() || !is_printable(tenant) {
            return Err(SettingsError::NotPrintable("--push-tenant"));
        }
        if headers.iter().any(|(name, _)| name == TENANT) {
            return Err(SettingsError::TwoIdentities("--push-tenant", "--push-header"));
        }
        headers.push((TENANT.to_owned(), Secret::new(tenant)));
    }
    Ok(headers)
}

/// Merges the sources of credentials; more than one user name or password is an error.
fn credentials(
    given: &Given,
    in_address: Option<(String, Option<Secret>)>,
    headers: &[(String, Secret)],
) -> Result<Option<Credentials>, SettingsError> {
    let (named, password) = in_address.map_or((None, None), |(user, password)| (Some(user), password));
    let user = match (&given.user, named) {
        (Some(_), Some(_)) => return Err(SettingsError::TwoIdentities("--push-user", "the address")),
        (given, named) => given.clone().or(named),
    };
    let token = match (&given.token_file, password) {
        (Some(_), Some(_)) => return Err(SettingsError::TwoIdentities("--push-token-file", "the address")),
        (Some(file), None) => Some(Token::File(file.clone())),
        (None, Some(password)) => Some(Token::Known(password)),
        (None, None) => given.token.clone().map(Token::Known),
    };
    let token = match (token, &user) {
        (Some(token), _) => token,
        (None, Some(_)) => return Err(SettingsError::NoPassword),
        (None, None) => return Ok(None),
    };
    if headers.iter().any(|(name, _)| name == "authorization") {
        return Err(SettingsError::TwoIdentities(
            "--push-header Authorization",
            "a token",
        ));
    }
    let is_right = |text: &str| is_printable(text) || user.is_some();
    if matches!(&token, Token::Known(token) if !is_right(token.reveal())) {
        return Err(SettingsError::NotPrintable("MEMLEAK_PUSH_TOKEN"));
    }
    Ok(Some(Credentials { user, token }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str, change: impl FnOnce(&mut Given)) -> Result<Settings, SettingsError> {
        let mut given = Given {
            url: url.to_owned(),
            ..Given::default()
        };
        change(&mut given);
        Settings::new(given)
    }

    /// The server address is kept without credentials and without the path that memleak adds itself.
    #[test]
    fn addresses() {
        for (url, server) in [
            ("http://localhost:4040", "http://localhost:4040"),
            ("https://u:p%40ss@a.example/", "https://a.example"),
            ("https://a.example/pyroscope/", "https://a.example/pyroscope"),
            ("http://[::1]:80/push.v1.PusherService/Push", "http://[::1]:80"),
        ] {
            let settings = settings(url, |_| {}).expect(url);
            assert_eq!(settings.server, server);
            assert!(!format!("{settings:?}").contains("p@ss"), "{settings:?}");
        }
        for url in [
            "",
            "localhost:4040",
            "//localhost",
            "ftp://a.example",
            "http://",
            "http://a.example?x=1",
            "http://a.example#x",
            "http://a b",
        ] {
            assert_eq!(settings(url, |_| {}).err(), Some(SettingsError::Url), "{url}");
        }
    }

    /// Credentials from two sources, a user without a password and an unprintable token are refused.
    #[test]
    fn identities() {
        let token = || Some(Secret::new("t"));
        let of =
            |url: &str, change: fn(&mut Given)| settings(url, change).map(|settings| settings.credentials);
        let known = |user: Option<&str>, token: &str| {
            Ok(Some(Credentials {
                user: user.map(str::to_owned),
                token: Token::Known(Secret::new(token)),
            }))
        };
        assert_eq!(of("http://h", |_| {}), Ok(None));
        assert_eq!(of("https://u:p%3A@h", |_| {}), known(Some("u"), "p:"));
        assert_eq!(
            of("http://u@h", |given| given.token = Some(Secret::new("t"))),
            known(Some("u"), "t")
        );
        let with_token = settings("http://h", |given| given.token = token());
        assert_eq!(with_token.map(|settings| settings.credentials), known(None, "t"));
        assert_eq!(of("http://u@h", |_| {}), Err(SettingsError::NoPassword));
        for change in [
            |given: &mut Given| given.user = Some("other".to_owned()),
            |given: &mut Given| given.token_file = Some("file".into()),
            |given: &mut Given| given.headers = vec!["authorization: x".to_owned()],
        ] {
            let error = of("http://u:p@h", change).expect_err("two");
            assert!(matches!(error, SettingsError::TwoIdentities(..)), "{error}");
        }
        let line = settings("http://h", |given| given.token = Some(Secret::new("a\nb")));
        assert_eq!(
            line.err(),
            Some(SettingsError::NotPrintable("MEMLEAK_PUSH_TOKEN"))
        );
    }

    /// Unencrypted credentials are detected, except on this machine; a tenant name is not a credential.
    #[test]
    fn secrets_in_clear() {
        let is_clear = |url: &str, change: fn(&mut Given)| {
            let settings = settings(url, change).expect("it makes sense");
            settings.tells_secrets_in_clear()
        };
        for url in [
            "http://u:p@a.example",
            "http://u:p@10.0.0.1",
            "http://u:p@[fe80::1]",
        ] {
            assert!(is_clear(url, |_| {}), "{url}");
        }
        for url in [
            "https://u:p@a.example",
            "http://u:p@localhost:1",
            "http://u:p@127.9.9.9",
            "http://u:p@[::1]:1",
        ] {
            assert!(!is_clear(url, |_| {}), "{url}");
        }
        assert!(!is_clear("http://a.example", |given| given.tenant = Some("t".to_owned())));
        assert!(is_clear("http://a.example", |given| {
            given.headers = vec!["X-Key: k".to_owned()];
        }));
    }

    /// Labels and headers that no server accepts are refused, and the messages do not repeat secrets.
    #[test]
    fn labels_and_headers() {
        let label = |text: &str| settings("http://h", |given| given.labels = vec![text.to_owned()]);
        assert_eq!(label("a_1=b=c,d").expect("a label").labels["a_1"], "b=c,d");
        for text in ["", "a", "=b", "1a=b", "a-b=c", "__name__=x", "ä=b"] {
            assert_eq!(label(text).err(), Some(SettingsError::Label(text.to_owned())));
        }
        let twice = settings("http://h", |given| {
            given.labels = vec!["a=1".to_owned(), "a=2".to_owned()];
        });
        assert_eq!(twice.err(), Some(SettingsError::LabelTwice("a".to_owned())));
        for (text, shown) in [
            ("secret", "without a colon"),
            ("a b: secret", "`a b`"),
            (": secret", "``"),
            ("a: secret\u{7f}", "`a`"),
            ("Content-Type: secret", "`Content-Type`"),
        ] {
            let refused = settings("http://h", |given| given.headers = vec![text.to_owned()]);
            let error = refused.expect_err(text).to_string();
            assert!(error.contains(shown) && !error.contains("secret"), "{error}");
        }
        for tenant in ["", "a\nb"] {
            let refused = settings("http://h", |given| given.tenant = Some(tenant.to_owned()));
            assert_eq!(refused.err(), Some(SettingsError::NotPrintable("--push-tenant")));
        }
    }
}
