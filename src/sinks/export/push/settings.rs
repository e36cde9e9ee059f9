//! Where profiles are pushed, and how: what the user said, validated.

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

/// The header that names a tenant to Pyroscope, and to others of its family.
pub(super) const TENANT: &str = "x-scope-orgid";
/// Headers that follow from what is sent.
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

/// What the user said.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The server's address.
    pub url: String,
    /// Its protocol.
    pub api: Api,
    /// Labels, each `NAME=VALUE`.
    pub labels: Vec<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// Headers, each `NAME: VALUE`.
    pub headers: Vec<String>,
    /// A file with a token.
    pub token_file: Option<PathBuf>,
    /// A token of the environment.
    pub token: Option<Secret>,
    /// The name that makes it a password.
    pub user: Option<String>,
    /// A file with the certificates of who is trusted.
    pub authority: Option<PathBuf>,
}

/// Where profiles are pushed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The server's protocol.
    pub api: Api,
    /// Its address, without credentials and without a slash at its end.
    pub server: String,
    /// Labels of all profiles.
    pub labels: BTreeMap<String, String>,
    /// Headers of all requests, the tenant's among them.
    pub(super) headers: Vec<(String, Secret)>,
    pub(super) credentials: Option<Credentials>,
    /// A file with the certificates of who is trusted, instead of whom the system trusts.
    pub authority: Option<PathBuf>,
    /// The server is on this machine.
    pub(super) is_local: bool,
}

impl Settings {
    /// What `given` means.
    ///
    /// # Errors
    ///
    /// It makes no sense.
    pub fn new(given: Given) -> Result<Self, SettingsError> {
        let address = Address::parse(&given.url, given.api)?;
        let headers = headers(&given)?;
        let credentials = credentials(&given, address.user, &headers)?;
        Ok(Self {
            api: given.api,
            server: address.server,
            labels: labels(&given.labels)?,
            headers,
            credentials,
            authority: given.authority,
            is_local: address.is_local,
        })
    }

    /// Whether credentials go over a network on which they can be read.
    pub(super) fn tells_secrets_in_clear(&self) -> bool {
        let is_clear = !self.is_local && self.server.starts_with("http:");
        is_clear && (self.credentials.is_some() || self.headers.iter().any(|(name, _)| name != TENANT))
    }
}

/// The server's address.
struct Address {
    server: String,
    /// The name and the password in it.
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
        // Some give the whole address that documentation names.
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

fn labels(given: &[String]) -> Result<BTreeMap<String, String>, SettingsError> {
    let mut labels = BTreeMap::new();
    for text in given {
        let label = text.split_once('=').filter(|(name, _)| is_label_name(name));
        let (name, value) = label.ok_or_else(|| SettingsError::Label(text.clone()))?;
        if labels.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(SettingsError::LabelTwice(name.to_owned()));
        }
    }
    Ok(labels)
}

/// Names that Prometheus and so all stores take. Those with two underscores in front are theirs.
fn is_label_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
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
            // It may be the value.
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

/// Who pushes, of all that says so: a user is named once, with one password.
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

    /// Addresses are kept without what is secret in them, and without what memleak adds itself.
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

    /// Who pushes is said in one way.
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

    /// Credentials in the clear are noticed, except on this machine; a tenant's name is none.
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

    /// What no server could be told is refused, and secrets are not repeated.
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
