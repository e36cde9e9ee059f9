//! Builds the requests of each protocol.
//!
//! * Pyroscope: `POST /push.v1.PusherService/Push` with the message of
//!   <https://github.com/grafana/pyroscope/blob/main/api/push/v1/push.proto>, by the unary Connect protocol
//!   (<https://connectrpc.com/docs/protocol>). All series in one request. `__delta__="false"` declares that
//!   allocations are already differences.
//! * Older Pyroscope: `POST /ingest?name=SERVICE{LABELS}&…&format=pprof`, one request per series.
//! * Parca: `POST /parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw` with the message of
//!   <https://github.com/parca-dev/parca/blob/main/proto/parca/profilestore/v1alpha1/profilestore.proto>, by
//!   gRPC-Web (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>), which Parca's own pages use
//!   and which needs no HTTP/2.
//! * OTLP: `POST /v1development/profiles` with an `ExportProfilesServiceRequest`
//!   (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>), compressed, one request per process.
//!
//! Parca treats a profile with a duration as a difference, whatever its values are, so it gets two:
//! allocations since the last report, and outstanding memory at this moment.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message;

use super::backoff::random;
use super::settings::Api;
use leak_report::render::Amounts;

/// The label with the kind of a profile.
pub(super) const METRIC_NAME: &str = "__name__";
/// Value of [`METRIC_NAME`].
const MEMORY: &str = "memory";
/// Characters to percent-encode in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Profiles of one process from one report.
pub(super) struct Series {
    pub(super) labels: BTreeMap<String, String>,
    /// Compressed pprof, one for each of [`Api::parts`]; or one request of OTLP.
    pub(super) profiles: Vec<Vec<u8>>,
    /// Number of profiles in these.
    pub(super) number: u64,
    pub(super) until: SystemTime,
    pub(super) duration: Duration,
}

/// An HTTP request.
pub(super) struct Upload {
    /// Path and query, appended to the server's address.
    pub(super) target: String,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    /// Number of profiles in the body.
    pub(super) profiles: u64,
}

impl Api {
    /// Path of the API, appended to the server's address.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Pyroscope => "/push.v1.PusherService/Push",
            Self::PyroscopeIngest => "/ingest",
            Self::Parca => "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
            Self::Otlp => "/v1development/profiles",
        }
    }

    /// Contents of the pprof profiles that one report is split into; none if it is sent in another format.
    pub(super) const fn parts(self) -> &'static [Amounts] {
        match self {
            Self::Pyroscope | Self::PyroscopeIngest => &[Amounts::Both],
            Self::Parca => &[Amounts::Allocated, Amounts::Outstanding],
            Self::Otlp => &[],
        }
    }

    /// Returns whether frames without a symbol need a substitute name. (Other servers resolve them by
    /// build-id and address.)
    pub(super) const fn needs_names(self) -> bool {
        matches!(self, Self::Pyroscope | Self::PyroscopeIngest)
    }

    /// Headers besides `Content-Type`.
    pub(super) const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Pyroscope => &[("connect-protocol-version", "1")],
            Self::PyroscopeIngest => &[],
            Self::Parca => &[("x-grpc-web", "1"), ("accept", "application/grpc-web+proto")],
            Self::Otlp => &[("content-encoding", "gzip")],
        }
    }

    /// Builds the requests for all of `series`.
    pub(super) fn uploads(self, series: &[Series]) -> Vec<Upload> {
        if series.is_empty() {
            return Vec::new();
        }
        let profiles = series.iter().map(|one| one.number).sum();
        let upload = |content_type, body| Upload {
            target: self.path().to_owned(),
            content_type,
            body,
            profiles,
        };
        match self {
            Self::Pyroscope => vec![upload("application/proto", push_request(series).encode_to_vec())],
            Self::Parca => vec![upload(
                "application/grpc-web+proto",
                framed(&write_request(series).encode_to_vec()),
            )],
            Self::PyroscopeIngest => series.iter().flat_map(ingests).collect(),
            Self::Otlp => series.iter().flat_map(exports).collect(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) series: Vec<PushSeries>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PushSeries {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteRequest {
    #[prost(message, repeated, tag = "2")]
    pub(super) series: Vec<WriteSeries>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteSeries {
    #[prost(message, optional, tag = "1")]
    pub(super) labels: Option<LabelSet>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LabelSet {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) raw_profile: Vec<u8>,
    /// UUID by which Pyroscope detects a profile that is sent again; empty for Parca.
    #[prost(string, tag = "2")]
    pub(super) id: String,
}

fn push_request(series: &[Series]) -> PushRequest {
    let one = |series: &Series| PushSeries {
        labels: labels(series, &[(METRIC_NAME, MEMORY), ("__delta__", "false")]),
        samples: samples(series, uuid),
    };
    PushRequest {
        series: series.iter().map(one).collect(),
    }
}

fn write_request(series: &[Series]) -> WriteRequest {
    let one = |series: &Series| WriteSeries {
        labels: Some(LabelSet {
            labels: labels(series, &[(METRIC_NAME, MEMORY)]),
        }),
        samples: samples(series, String::new),
    };
    WriteRequest {
        series: series.iter().map(one).collect(),
    }
}

fn labels(series: &Series, stores: &[(&str, &str)]) -> Vec<Label> {
    let given = series.labels.iter();
    let given = given.map(|(name, value)| (name.as_str(), value.as_str()));
    let label = |(name, value): (&str, &str)| Label {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    stores.iter().copied().chain(given).map(label).collect()
}

fn samples(series: &Series, id: fn() -> String) -> Vec<Sample> {
    let sample = |profile: &Vec<u8>| Sample {
        raw_profile: profile.clone(),
        id: id(),
    };
    series.profiles.iter().map(sample).collect()
}

/// Creates 16 random bytes as a profile's ID; collisions are negligible.
pub(super) fn profile_id() -> [u8; 16] {
    random_bits().to_be_bytes()
}

fn random_bits() -> u128 {
    u128::from(random()) << 64 | u128::from(random())
}

/// Creates a random UUID (RFC 9562, 5.4).
fn uuid() -> String {
    let bits = random_bits();
    let bits = bits & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let digits = format!("{bits:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// Prefixes a message with gRPC's header: the flag byte 0 (not compressed) and the length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    framed
}

/// Builds one request for each profile of a series.
fn ingests(series: &Series) -> impl Iterator<Item = Upload> {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_secs().to_string()
    };
    let from = series.until.checked_sub(series.duration).unwrap_or(UNIX_EPOCH);
    let query = [
        ("name", ingest_name(&series.labels)),
        ("from", seconds(from)),
        ("until", seconds(series.until)),
        ("format", "pprof".to_owned()),
        ("spyName", "memleak".to_owned()),
    ];
    let query = query.map(|(name, value)| format!("{name}={}", utf8_percent_encode(&value, QUERY)));
    let target = format!("{}?{}", Api::PyroscopeIngest.path(), query.join("&"));
    series.profiles.iter().map(move |profile| Upload {
        target: target.clone(),
        content_type: "application/octet-stream",
        body: profile.clone(),
        profiles: 1,
    })
}

/// Builds the request with the profiles of one process.
fn exports(series: &Series) -> impl Iterator<Item = Upload> {
    series.profiles.iter().map(|request| Upload {
        target: Api::Otlp.path().to_owned(),
        content_type: "application/x-protobuf",
        body: request.clone(),
        profiles: series.number,
    })
}

/// `SERVICE{NAME=VALUE,…}`. The syntax has no quoting, so characters that would end a value are replaced.
fn ingest_name(labels: &BTreeMap<String, String>) -> String {
    const SERVICE: &str = "service_name";
    let service = labels.get(SERVICE).map_or("unknown", String::as_str);
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    let service = service.replace(|character| !is_plain(character), "_");
    let others = labels.iter().filter(|(name, _)| *name != SERVICE);
    let others = others.map(|(name, value)| format!("{name}={}", value.replace([',', '}'], "_")));
    format!("{service}{{{}}}", others.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that would end a value in a name for `/ingest` are replaced, as its syntax has no quoting.
    #[test]
    fn ingest_names() {
        let labels = [
            ("service_name", "my app/1{}"),
            ("exe", "/bin/a b"),
            ("odd", "x,y=1}{"),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let name = ingest_name(&BTreeMap::from(labels));
        assert_eq!(name, "my_app/1__{exe=/bin/a b,odd=x_y=1_{}");
        assert_eq!(
            utf8_percent_encode("a{b=/c d&é}", QUERY).to_string(),
            "a%7Bb%3D%2Fc%20d%26%C3%A9%7D"
        );
    }

    fn series() -> Series {
        Series {
            labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            profiles: vec![b"P".to_vec()],
            number: 1,
            until: UNIX_EPOCH,
            duration: Duration::ZERO,
        }
    }

    /// The encoded messages equal bytes computed by hand from the servers' definitions and protobuf's
    /// encoding: a field's tag byte is its number times 8 plus 2, and a length follows.
    #[test]
    fn bytes_of_messages() {
        let label = |name: &str, value: &str| {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            let field = |tag, text: &[u8]| [&[tag, u8::try_from(text.len()).expect("short")], text].concat();
            [field(0x0a, name), field(0x12, value)].concat()
        };
        let within = |tag: u8, inner: &[u8]| {
            let length = u8::try_from(inner.len()).expect("short");
            [&[tag, length], inner].concat()
        };
        let mut push = push_request(&[series()]);
        push.series[0].samples[0].id = "I".to_owned();
        let expected = [
            within(0x0a, &label("__name__", "memory")),
            within(0x0a, &label("__delta__", "false")),
            within(0x0a, &label("a", "b")),
            within(0x12, b"\x0a\x01P\x12\x01I"),
        ];
        assert_eq!(push.encode_to_vec(), within(0x0a, &expected.concat()));
        let labels = [
            within(0x0a, &label("__name__", "memory")),
            within(0x0a, &label("a", "b")),
        ];
        let expected = [within(0x0a, &labels.concat()), within(0x12, b"\x0a\x01P")];
        let write = write_request(&[series()]).encode_to_vec();
        assert_eq!(write, within(0x12, &expected.concat()));
        assert_eq!(framed(b"abc"), b"\0\0\0\0\x03abc");
    }

    /// A UUID is of version 4 and variant 1, and two are different.
    #[test]
    fn uuids() {
        let (one, other) = (uuid(), uuid());
        for text in [&one, &other] {
            let parts: Vec<_> = text.split('-').collect();
            let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{text}");
            assert!(parts[2].starts_with('4'), "{text}");
            assert!(parts[3].starts_with(['8', '9', 'a', 'b']), "{text}");
        }
        assert_ne!(one, other);
    }
}
