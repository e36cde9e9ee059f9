//! Shared parts of HTTP clients: address lookup, and trusted certificates.
//!
//! libc looks addresses up with modules that it loads, which a static program cannot do safely (see
//! `launch::account`). A static build runs `getent` instead.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::{io, thread};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::tls::{Certificate, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

use crate::system;

/// An HTTP client for `config`.
pub fn agent(config: Config) -> Agent {
    if cfg!(target_feature = "crt-static") {
        return Agent::with_parts(config, DefaultConnector::default(), Getent);
    }
    Agent::new_with_config(config)
}

/// TLS settings with these root certificates; `None` if no server is accessed by HTTPS.
pub fn tls(certificates: Option<Vec<Certificate<'static>>>) -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    match certificates {
        Some(certificates) => builder.root_certs(certificates.into()).build(),
        None => builder.build(),
    }
}

/// Certificates that this system trusts. Those that cannot be read are logged with the prefix `asker`.
pub fn system_certificates(asker: &str) -> Vec<Certificate<'static>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("{asker}: cannot read the system's certificates: {error}");
    }
    let owned = |certificate: &_| Certificate::from_der(certificate).to_owned();
    let certificates = found.certs.iter();
    certificates
        .map(|certificate| owned(certificate.as_ref()))
        .collect()
}

/// Resolves names by running `getent`.
#[derive(Debug)]
struct Getent;

impl Resolver for Getent {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().unwrap_or_default().to_owned();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        if literal.parse::<IpAddr>().is_ok() {
            return DefaultResolver::default().resolve(uri, config, timeout);
        }
        let https = uri.scheme() == Some(&Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let (sender, answer) = mpsc::sync_channel(1);
        // `getent` may wait for servers itself; after a timeout, the thread is left behind.
        thread::spawn(move || sender.send(ask(&host)));
        let answer = answer.recv_timeout(*timeout.after);
        let found = answer.map_err(|_| Error::Timeout(timeout.reason))??;
        let mut addresses = self.empty();
        for address in found.into_iter().take(MAX_ADDRESSES) {
            addresses.push(SocketAddr::new(address, port));
        }
        match addresses.is_empty() {
            true => Err(Error::HostNotFound),
            false => Ok(addresses),
        }
    }
}

/// Capacity of `ResolvedSocketAddrs`.
const MAX_ADDRESSES: usize = 16;

/// All addresses of a host; empty if it is unknown.
fn ask(host: &str) -> io::Result<Vec<IpAddr>> {
    let answer =
        system::command("getent").and_then(|mut getent| getent.args(["ahosts", "--", host]).output());
    let answer =
        answer.map_err(|error| io::Error::new(error.kind(), format!("cannot run `getent`: {error}")))?;
    let mut addresses = Vec::new();
    for line in String::from_utf8_lossy(&answer.stdout).lines() {
        let address = line
            .split_whitespace()
            .next()
            .and_then(|first| first.parse().ok());
        addresses.extend(address.filter(|address| !addresses.contains(address)));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ureq::Timeout;

    use super::*;

    /// `getent` finds the same addresses as libc for names and literals, with the port of the URL or of its
    /// scheme; an unknown host is an error.
    #[test]
    fn commands_and_libc_agree() {
        let timeout = || NextTimeout {
            after: Duration::from_secs(30).into(),
            reason: Timeout::Resolve,
            ..NextTimeout::default()
        };
        let config = Config::default();
        for (uri, port) in [
            ("http://localhost/a", 80),
            ("https://localhost", 443),
            ("http://localhost:4040", 4040),
            ("http://127.0.0.1:1", 1),
            ("http://[::1]:2", 2),
        ] {
            let uri = uri.parse::<Uri>().expect("a URI");
            let sorted = |resolver: &dyn Resolver| {
                let mut found = resolver
                    .resolve(&uri, &config, timeout())
                    .expect("found")
                    .to_vec();
                found.sort_unstable();
                found
            };
            let asked = sorted(&Getent);
            assert_eq!(asked, sorted(&DefaultResolver::default()));
            assert!(asked.iter().all(|address| address.port() == port), "{asked:?}");
        }
        let nowhere = "http://nowhere.invalid".parse().expect("a URI");
        let error = Getent
            .resolve(&nowhere, &config, timeout())
            .expect_err("not found");
        assert!(matches!(error, Error::HostNotFound), "{error}");
    }
}
