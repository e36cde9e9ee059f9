//! Sends one request and classifies its answer.

use std::fs;
use std::io::Read;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{Certificate, PemItem, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::credentials::{CachedCredentials, Secret};
use super::envelope::Upload;
use super::otlp;
use super::settings::{Api, Settings};
use crate::base::hosts;
use crate::sinks::export::ExportError;
use leak_report::render::printable;

/// Maximum number of bytes that are read of an answer.
const MAX_ANSWER: u64 = 64 << 10;
/// Maximum number of characters of an answer that are logged.
const MAX_SHOWN: usize = 200;

/// An HTTP client for one server.
pub(super) struct Client {
    api: Api,
    server: String,
    headers: Vec<(String, Secret)>,
    cached: Option<CachedCredentials>,
    agent: Agent,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    /// Accepted except for this number of profiles, with the reason; with a warning if the number is 0.
    Partly(u64, String),
    /// Refused for good; sending it again would not help.
    Refused(String),
    /// Refused for now, with the delay that the server asked for, if any.
    Later(String, Option<Duration>),
    Unreachable(String),
}

impl Client {
    /// Creates a client for the server of `settings`.
    pub(super) fn new(settings: &Settings) -> Result<Self, ExportError> {
        let cached = settings
            .credentials
            .clone()
            .map(CachedCredentials::open)
            .transpose()?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect must not send the data elsewhere, least of all with credentials.
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Servers close connections that are idle between reports, and a request on a closed one would
            // fail.
            .max_idle_connections(0)
            .user_agent(concat!("memleak/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls(settings)?);
        if settings.is_local {
            // A proxy from the environment would take localhost for its own machine.
            config = config.proxy(None);
        }
        Ok(Self {
            api: settings.api,
            server: settings.server.clone(),
            headers: settings.headers.clone(),
            cached,
            agent: hosts::agent(config.build()),
        })
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Sends `upload`, within `timeout`.
    pub(super) fn send(&mut self, upload: &Upload, timeout: Duration) -> Outcome {
        let address = format!("{}{}", self.server, upload.target);
        let mut request = self
            .agent
            .post(address)
            .config()
            .timeout_global(Some(timeout))
            .build()
            .content_type(upload.content_type);
        let fixed = self.api.headers().iter().copied();
        let given = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.reveal()));
        for (name, value) in fixed.chain(given) {
            request = request.header(name, value);
        }
        if let Some(cached) = &mut self.cached {
            request = request.header("authorization", cached.authorization());
        }
        match request.send(&upload.body[..]) {
            Ok(response) => meaning(self.api, response),
            Err(error) => Outcome::Unreachable(error.to_string()),
        }
    }
}

/// Trusts the certificates of `--push-ca`, or else the system's.
fn tls(settings: &Settings) -> Result<TlsConfig, ExportError> {
    let given = settings.authority.as_ref().map(|path| {
        let found = fs::read(path).map_err(|error| error.to_string());
        found
            .and_then(|pem| certificates(&pem))
            .map_err(|why| ExportError::Authority {
                path: path.display().to_string(),
                why,
            })
    });
    let is_needed = settings.server.starts_with("https:");
    let trusted = given
        .transpose()?
        .or_else(|| is_needed.then(|| hosts::system_certificates("push")));
    Ok(hosts::tls(trusted))
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err("no certificate found: the file must be in PEM format".to_owned()),
        false => Ok(certificates),
    }
}

fn meaning(api: Api, mut response: Response<Body>) -> Outcome {
    let status = response.status().as_u16();
    let mut body = Vec::new();
    let read = response
        .body_mut()
        .as_reader()
        .take(MAX_ANSWER)
        .read_to_end(&mut body);
    let headers = response.headers();
    match (status, api) {
        (200..=299, Api::Parca | Api::Otlp) => match (read, api) {
            (Ok(_), Api::Otlp) => otlp::meaning(&body),
            (Ok(_), Api::Parca | Api::Pyroscope | Api::PyroscopeIngest) => grpc_meaning(headers, &body),
            (Err(error), _) => Outcome::Unreachable(error.to_string()),
        },
        (200..=299, Api::Pyroscope | Api::PyroscopeIngest) => Outcome::Accepted,
        (300..=399, _) => {
            let place = headers.get("location").and_then(|place| place.to_str().ok());
            let place = place.map_or_else(String::new, |place| format!(" {}", shown(place)));
            Outcome::Refused(format!(
                "status {status}: redirects are not followed: give the address{place}"
            ))
        }
        (_, Api::Otlp) => match otlp::is_temporary(status) {
            true => Outcome::Later(otlp::answer(status, &body), retry_after(headers)),
            false => Outcome::Refused(otlp::answer(status, &body)),
        },
        // Request Timeout, Too Early, Too Many Requests, and all server errors except Not Implemented and
        // HTTP Version Not Supported (RFC 9110, 15; RFC 8470; RFC 6585).
        (408 | 425 | 429 | 500 | 502..=504 | 506..=599, _) => {
            Outcome::Later(answer(status, &body), retry_after(headers))
        }
        _ => Outcome::Refused(answer(status, &body)),
    }
}

pub(super) fn answer(status: u16, body: &[u8]) -> String {
    /// An error of the Connect protocol.
    #[derive(Deserialize)]
    struct Error {
        message: String,
    }
    let text = match serde_json::from_slice(body) {
        Ok(Error { message }) => message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    match text.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("status {status}: {}", shown(line)),
        None => format!("status {status}"),
    }
}

/// The printable beginning of a server's text.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN).collect();
    let rest = if short.len() < text.len() { "…" } else { "" };
    format!("{}{rest}", printable(&short))
}

/// Parses `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = DateTime::parse_from_rfc2822(text).ok()?;
    let wait = date.signed_duration_since(Utc::now());
    Some(wait.to_std().unwrap_or_default())
}

/// Classifies the gRPC status, which is in a trailer at the end of the body, or in the headers if there is no
/// body.
fn grpc_meaning(headers: &HeaderMap, body: &[u8]) -> Outcome {
    let header = |name| headers.get(name)?.to_str().ok().map(str::to_owned);
    let trailers = trailers(body);
    let trailer = |name: &str| {
        let lines = trailers.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(found, _)| found.trim().eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim().to_owned())
    };
    let find = |name| trailer(name).or_else(|| header(name));
    let Some(status) = find("grpc-status") else {
        return Outcome::Refused("the answer is not gRPC-Web: is it a Parca server?".to_owned());
    };
    let message = find("grpc-message").unwrap_or_default();
    let message = percent_encoding::percent_decode_str(&message).decode_utf8_lossy();
    let text = format!("gRPC status {}: {}", shown(&status), shown(&message));
    match status.as_str() {
        "0" => Outcome::Accepted,
        // CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE: the ones that a retry can
        // change (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md).
        "1" | "4" | "8" | "10" | "14" => Outcome::Later(text, retry_after(headers)),
        _ => Outcome::Refused(text),
    }
}

/// The text of the frame that is flagged as trailers; empty if there is none.
fn trailers(mut body: &[u8]) -> String {
    const TRAILERS: u8 = 0x80;
    while let Some((&[flags, a, b, c, d], rest)) = body.split_first_chunk() {
        let length = u32::from_be_bytes([a, b, c, d]);
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
        let (frame, after) = rest.split_at(length);
        if flags & TRAILERS != 0 {
            return String::from_utf8_lossy(frame).into_owned();
        }
        body = after;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let value = value.parse().expect("a value");
            (ureq::http::HeaderName::from_static(name), value)
        });
        pairs.collect()
    }

    /// The gRPC status is read from the end of the body, or from the headers of an answer without one.
    #[test]
    fn grpc_answers() {
        let message = [0, 0, 0, 0, 2, 9, 9];
        let trailer = |text: &str| {
            let length = u8::try_from(text.len()).expect("it is short");
            [&[0x80, 0, 0, 0, length], text.as_bytes()].concat()
        };
        let none = headers(&[]);
        let accepted = [&message[..], &trailer("grpc-status: 0\r\n")].concat();
        assert_eq!(grpc_meaning(&none, &accepted), Outcome::Accepted);
        let later = trailer("Grpc-Status:14\r\ngrpc-message: too%20much\r\n");
        assert_eq!(
            grpc_meaning(&headers(&[("retry-after", "7")]), &later),
            Outcome::Later(
                "gRPC status 14: too much".to_owned(),
                Some(Duration::from_secs(7))
            )
        );
        let alone = headers(&[("grpc-status", "3"), ("grpc-message", "missing __name__ label")]);
        let refused = Outcome::Refused("gRPC status 3: missing __name__ label".to_owned());
        assert_eq!(grpc_meaning(&alone, b""), refused);
        for odd in [
            &b""[..],
            b"<html>",
            &[0x80],
            &[0x80, 255, 255, 255, 255],
            &message,
        ] {
            assert!(
                matches!(grpc_meaning(&none, odd), Outcome::Refused(text) if text.contains("Parca")),
                "{odd:?}"
            );
        }
    }

    /// `Retry-After` is a number of seconds or a date.
    #[test]
    fn waits() {
        let wait = |text: &str| retry_after(&headers(&[("retry-after", text)]));
        assert_eq!(wait("120"), Some(Duration::from_secs(120)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let date = Utc::now() + chrono::TimeDelta::seconds(100);
        let wait_until = wait(&date.format("%a, %d %b %Y %H:%M:%S GMT").to_string());
        assert!(
            wait_until.is_some_and(|wait| (90..=100).contains(&wait.as_secs())),
            "{wait_until:?}"
        );
        for text in ["", "-1", "soon"] {
            assert_eq!(wait(text), None, "{text}");
        }
    }

    /// An error answer is shown as one line of its message, shortened and without control characters.
    #[test]
    fn answers() {
        let message = br#"{"code":"invalid_argument","message":"no labels\nat all"}"#;
        assert_eq!(answer(400, message), "status 400: no labels");
        assert_eq!(
            answer(404, b"\n 404 page\x1b[2J\n"),
            "status 404: 404 page\\u{1b}[2J"
        );
        assert_eq!(answer(503, b""), "status 503");
        assert_eq!(answer(500, &[b'x'; 1000]).chars().count(), 12 + MAX_SHOWN + 1);
    }
}
