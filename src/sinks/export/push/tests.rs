//! Servers that check the requests they receive, with Go's `pprof` for the profiles, and servers that
//! misbehave.

use leak_report::samples;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::envelope::{PushRequest, WriteRequest};
use super::sender::Lost;
use super::*;
use crate::sinks::export::SettingsError;
use leak_report::model::{Amount, Estimate, InstanceEnd};
use memleak_test::profiles::pprof_command;
use memleak_test::receiver::{Receiver, answer};

const QUICK: Timing = Timing {
    request: Duration::from_secs(20),
    first_wait: Duration::from_millis(20),
    longest_wait: Duration::from_millis(50),
    end: Duration::from_secs(20),
};

/// The sample report of the format tests, five seconds after its predecessor: its first stack allocated 90
/// bytes in between.
fn report() -> Report {
    let mut report = samples::full();
    report.compared.since_last = Duration::from_secs(5);
    report.stacks[0].recent.since_last.allocated = Estimate::from(Amount { bytes: 90, blocks: 3 });
    report
}

fn given(receiver: &Receiver, api: Api) -> Given {
    Given {
        url: format!("http://{}", receiver.address),
        api,
        ..Given::default()
    }
}

fn pusher(given: Given) -> Pusher {
    Pusher::start_with(&Settings::new(given).unwrap(), QUICK).unwrap()
}

fn accepted(_: usize) -> Option<String> {
    Some(answer(200, "", ""))
}

/// Output of `pprof -raw`, without the locations.
fn raw(profile: &[u8]) -> String {
    let text = all_raw(profile);
    let lines = text.lines().take_while(|line| *line != "Locations");
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

fn all_raw(profile: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("profile.pb.gz");
    fs::write(&path, profile).unwrap();
    let output = pprof_command(directory.path())
        .args(["-symbolize=none", "-raw"])
        .arg(&path)
        .env("TZ", "UTC")
        .output()
        .expect("apt-get install golang-go");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn pairs<'a>(labels: impl IntoIterator<Item = &'a envelope::Label>) -> Vec<(&'a str, &'a str)> {
    let pairs = labels.into_iter().map(|label| (&*label.name, &*label.value));
    // The hostname depends on the machine.
    pairs.filter(|(name, _)| *name != "hostname").collect()
}

/// Pyroscope gets one profile per process, with allocations since the last report and outstanding memory, and
/// the credentials.
#[test]
fn pyroscope() {
    let receiver = Receiver::start(accepted);
    let mut pusher = pusher(Given {
        labels: vec!["env=dev".to_owned(), "service_name=mine".to_owned()],
        tenant: Some("team-a".to_owned()),
        headers: vec!["X-Extra: 1".to_owned()],
        token: Some(Secret::new("token")),
        ..given(&receiver, Api::Pyroscope)
    });
    pusher.take(&report());
    let request = receiver.next();
    assert_eq!(request.line, "POST /push.v1.PusherService/Push HTTP/1.1");
    for (name, value) in [
        ("content-type", "application/proto"),
        ("connect-protocol-version", "1"),
        ("x-scope-orgid", "team-a"),
        ("x-extra", "1"),
        ("authorization", "Bearer token"),
        ("user-agent", concat!("memleak/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let message = PushRequest::decode(&request.body[..]).unwrap();
    let [series] = &message.series[..] else {
        panic!("{message:?}")
    };
    assert_eq!(
        pairs(&series.labels),
        [
            ("__name__", "memory"),
            ("__delta__", "false"),
            ("comm", "leaker"),
            ("env", "dev"),
            ("exe", "/opt/leaker"),
            ("pid", "4242"),
            ("service_name", "mine"),
        ]
    );
    let profile = raw(&series.samples[0].raw_profile).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!(profile, @r"
Comment: memleak VERSION
Comment: complete stacks: 93.3% of allocations
Comment: lost: 9 blocks, 1.5 MiB
PeriodType: space bytes
Period: 1
Time: 2023-11-14 22:13:20 +0000 UTC
Duration: 5s
Samples:
alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]
          3         90         12        480: 2
                allocator:[malloc] end:[complete]
          0          0          1         40: 3 4 5
                allocator:[malloc] end:[no_cfi]
");
    // Frames without a symbol are named after their module here, and stay unnamed for Parca.
    let locations = all_raw(&series.samples[0].raw_profile);
    assert!(locations.contains(" [libplugin.so] "), "{locations}");
    pusher.take(&report());
    let second = PushRequest::decode(&receiver.next().body[..]).unwrap();
    assert_ne!(second.series[0].samples[0].id, series.samples[0].id);
    pusher.finish();
}

/// Parca treats a profile with a duration as a difference, so outstanding memory is a second profile without
/// one.
#[test]
fn parca() {
    let receiver = Receiver::start(|number| {
        Some(match number {
            0 => answer(200, "grpc-status: 0\r\n", ""),
            _ => answer(200, "grpc-status: 3\r\ngrpc-message: no\r\n", ""),
        })
    });
    let mut pusher = pusher(given(&receiver, Api::Parca));
    pusher.take(&report());
    let request = receiver.next();
    assert_eq!(
        request.line,
        "POST /parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw HTTP/1.1"
    );
    assert_eq!(request.header("content-type"), Some("application/grpc-web+proto"));
    let (frame, message) = request.body.split_at(5);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    assert_eq!(frame, [&[0][..], &length].concat());
    let message = WriteRequest::decode(message).unwrap();
    let series = &message.series[0];
    let labels = series.labels.as_ref().unwrap();
    assert_eq!(
        pairs(&labels.labels)[..2],
        [("__name__", "memory"), ("comm", "leaker")]
    );
    let locations = all_raw(&series.samples[1].raw_profile);
    assert!(!locations.contains("[libplugin.so]"), "{locations}");
    let profiles: Vec<String> = series.samples.iter().map(|one| raw(&one.raw_profile)).collect();
    let profiles = profiles.concat().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!(profiles, @r"
Comment: memleak VERSION
Comment: complete stacks: 93.3% of allocations
Comment: lost: 9 blocks, 1.5 MiB
PeriodType: space bytes
Period: 1
Time: 2023-11-14 22:13:20 +0000 UTC
Duration: 5s
Samples:
alloc_objects/count alloc_space/bytes[dflt]
          3         90: 2
                allocator:[malloc] end:[complete]
Comment: memleak VERSION
Comment: complete stacks: 93.3% of allocations
Comment: lost: 9 blocks, 1.5 MiB
PeriodType: space bytes
Period: 1
Time: 2023-11-14 22:13:20 +0000 UTC
Samples:
inuse_objects/count inuse_space/bytes[dflt]
         12        480: 2
                allocator:[malloc] end:[complete]
          1         40: 3 4 5
                allocator:[malloc] end:[no_cfi]
");
    let progress = pusher.progress();
    pusher.take(&report());
    pusher.finish();
    let counts = progress.counts();
    assert_eq!((counts.sent, counts.losses.refused), (2, 2));
}

/// A collector gets one request per process, whose resource attributes follow OpenTelemetry's conventions.
/// Rejected profiles and refused requests are counted, and not sent again.
#[test]
fn otlp() {
    // A partial success: 1 profile is rejected, with the message "odd".
    const PARTLY: &str = "\x0a\x07\x08\x01\x12\x03odd";
    let receiver = Receiver::start(|number| match number {
        0 => Some(answer(429, "Retry-After: 0\r\n", "")),
        1 => Some(answer(200, "", PARTLY)),
        // A status with the message "no", and a plain 500: both are permanent failures.
        2 => Some(answer(400, "", "\x08\x03\x12\x02no")),
        3 => Some(answer(500, "", "")),
        _ => accepted(number),
    });
    let mut pusher = pusher(Given {
        labels: vec!["service.name=mine".to_owned()],
        ..given(&receiver, Api::Otlp)
    });
    let of_another = Settings::new(Given {
        labels: vec!["service.name=mine".to_owned()],
        ..given(&receiver, Api::Pyroscope)
    });
    assert!(
        matches!(of_another, Err(SettingsError::Label(_))),
        "a dot in a label"
    );
    let progress = pusher.progress();
    let labels = pusher.labeller.labels(&report(), report().targets.first());
    let names: Vec<_> = labels.keys().filter(|name| *name != "host.name").collect();
    let process = [
        "process.executable.name",
        "process.executable.path",
        "process.pid",
        "service.name",
    ];
    assert_eq!(names, process);
    assert_eq!(labels["service.name"], "mine");
    for _ in 0..4 {
        pusher.take(&report());
    }
    let requests: Vec<_> = (0..5).map(|_| receiver.next()).collect();
    pusher.finish();
    assert!(receiver.rest().is_empty());
    assert_eq!(requests[0].line, "POST /v1development/profiles HTTP/1.1");
    assert_eq!(requests[0].header("content-type"), Some("application/x-protobuf"));
    assert_eq!(requests[0].header("content-encoding"), Some("gzip"));
    assert_eq!(requests[0].body, requests[1].body);
    assert_ne!(requests[1].body, requests[2].body, "profiles have IDs");
    let counts = progress.counts();
    // Four profiles in each request.
    assert_eq!(
        (counts.sent, counts.losses.refused, counts.retries),
        (3 + 4, 1 + 4 + 4, 1)
    );
}

/// The older Pyroscope protocol has everything but the profile in the URL.
#[test]
fn ingest() {
    let receiver = Receiver::start(accepted);
    let mut pusher = pusher(given(&receiver, Api::PyroscopeIngest));
    pusher.labeller.forget_hostname();
    pusher.take(&report());
    let request = receiver.next();
    assert_eq!(
        request.line,
        "POST /ingest?name=leaker%7Bcomm%3Dleaker%2Cexe%3D%2Fopt%2Fleaker%2Cpid%3D4242%7D&from=1699999995&until=1700000000&\
         format=pprof&spyName=memleak HTTP/1.1"
    );
    assert!(raw(&request.body).contains("inuse_space/bytes"));
    pusher.finish();
}

/// An upload that a server cannot accept now is sent again, one that it refuses is not; both are counted.
#[test]
fn failures() {
    let receiver = Receiver::start(|number| match number {
        0 => Some(answer(503, "Retry-After: 0\r\n", "")),
        1 => None,
        2 => Some(answer(429, "", "slow down")),
        4 => Some(answer(400, "", "{\"message\":\"bad\"}")),
        5 => Some(answer(307, "Location: http://elsewhere.example/\r\n", "")),
        _ => accepted(number),
    });
    let mut pusher = pusher(given(&receiver, Api::Pyroscope));
    let progress = pusher.progress();
    for _ in 0..4 {
        pusher.take(&report());
    }
    let ids: Vec<String> = (0..7)
        .map(|_| {
            let message = PushRequest::decode(&receiver.next().body[..]).unwrap();
            message.series[0].samples[0].id.clone()
        })
        .collect();
    // The first upload took four requests, three of which failed; the second and the third were refused.
    let distinct: HashSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), 4, "{ids:?}");
    assert!(ids[..4].iter().all(|id| *id == ids[0]), "{ids:?}");
    pusher.finish();
    let counts = progress.counts();
    assert_eq!((counts.sent, counts.retries, counts.waiting), (2, 3, 0));
    let refused = Lost {
        refused: 2,
        ..Lost::default()
    };
    assert_eq!(counts.losses, refused);
    assert_eq!(counts.causes(), "2 refused by the server");
    assert!(receiver.rest().is_empty(), "nothing follows a redirection");
}

/// An upload is given up after a number of failed answers.
#[test]
fn given_up() {
    let receiver = Receiver::start(|_| Some(answer(500, "", "broken")));
    let mut pusher = pusher(given(&receiver, Api::Pyroscope));
    let progress = pusher.progress();
    pusher.take(&report());
    for _ in 0..10 {
        receiver.next();
    }
    pusher.finish();
    let counts = progress.counts();
    assert_eq!((counts.losses.given_up, counts.retries), (1, 9), "{counts:?}");
}

/// A server that does not answer delays no report, and the end only for a limited time; unanswered profiles
/// are counted.
#[test]
fn silence() {
    let receiver = Receiver::start(|_| {
        thread::park();
        None
    });
    let timing = Timing {
        end: Duration::from_millis(200),
        ..QUICK
    };
    let settings = Settings::new(given(&receiver, Api::Pyroscope)).unwrap();
    let mut pusher = Pusher::start_with(&settings, timing).unwrap();
    let shared = Arc::clone(&pusher.shared);
    pusher.take(&report());
    receiver.next();
    pusher.take(&report());
    assert_eq!(Progress(Arc::clone(&shared)).counts().waiting, 2);
    // Each request has a timeout a hundred times as long.
    pusher.finish();
    assert_eq!(shared.end(Duration::ZERO).losses.unsent, 2);
}

/// One more attempt is made at the end, whatever delay a server asked for.
#[test]
fn last_attempt() {
    let receiver = Receiver::start(|number| match number {
        0 => Some(answer(503, "Retry-After: 500\r\n", "")),
        _ => accepted(number),
    });
    let mut pusher = pusher(given(&receiver, Api::Pyroscope));
    let progress = pusher.progress();
    pusher.take(&report());
    receiver.next();
    while progress.counts().retries == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    pusher.finish();
    receiver.next();
    let counts = progress.counts();
    assert_eq!((counts.sent, counts.lost()), (1, 0));
}

/// An ended process is pushed once more. Memory of no single process is its own series when there are several
/// processes.
#[test]
fn series_of_processes() {
    let receiver = Receiver::start(accepted);
    let mut pusher = pusher(given(&receiver, Api::Pyroscope));
    let mut two = report();
    let mut other = two.targets[0].clone();
    (other.instance, other.pid, other.comm) = (2, 5, "other".to_owned());
    two.targets.push(other);
    two.stacks[1].instance = 2;
    let services = |pusher: &mut Pusher, report: &Report| {
        pusher.take(report);
        let message = PushRequest::decode(&receiver.next().body[..]).unwrap();
        let service = |series: &envelope::PushSeries| {
            let label = series.labels.iter().find(|label| label.name == "service_name");
            label.unwrap().value.clone()
        };
        message.series.iter().map(service).collect::<Vec<_>>()
    };
    assert_eq!(services(&mut pusher, &two), ["leaker", "other"]);
    two.targets[1].ended = Some(InstanceEnd::Exited);
    assert_eq!(services(&mut pusher, &two), ["leaker", "other"]);
    assert_eq!(services(&mut pusher, &two), ["leaker"]);
    two.stacks[1].instance = 0;
    assert_eq!(services(&mut pusher, &two), ["leaker", "several-processes"]);
    // With a single process, that memory belongs to it.
    two.targets.pop();
    assert_eq!(services(&mut pusher, &two), ["leaker"]);
    // Nothing is sent without stacks.
    two.stacks.clear();
    pusher.take(&two);
    pusher.finish();
    assert!(receiver.rest().is_empty());
}

/// `--push-ca` replaces the system's certificates.
#[test]
fn encrypted() {
    const CERTIFICATES: &str = r#"
        key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        for name in ca other; do
            openssl req -x509 $key -keyout $name.key -out $name.pem -subj /CN=$name
        done
        openssl req $key -keyout server.key -out server.csr -subj /CN=server
        echo subjectAltName=IP:127.0.0.1 >names
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out server.pem
    "#;
    let directory = tempfile::tempdir().unwrap();
    let made = Command::new("sh")
        .args(["-euc", CERTIFICATES])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = |name: &str| directory.path().join(name);
    let config = server_config(&path("server.pem"), &path("server.key"));
    let receiver = Receiver::start_wrapped(accepted, move |stream| {
        let session = ServerConnection::new(Arc::clone(&config)).unwrap();
        Box::new(StreamOwned::new(session, stream))
    });
    let pusher = |authority: &str| {
        let mut pusher = pusher(Given {
            url: format!("https://u:p@{}", receiver.address),
            authority: Some(path(authority)),
            ..given(&receiver, Api::Pyroscope)
        });
        let progress = pusher.progress();
        pusher.take(&report());
        pusher.finish();
        progress.counts().sent
    };
    assert_eq!(pusher("other.pem"), 0);
    assert!(receiver.rest().is_empty(), "it is told nothing");
    assert_eq!(pusher("ca.pem"), 1);
    assert_eq!(receiver.next().header("authorization"), Some("Basic dTpw"));
    for (name, problem) in [("nothing", "No such file"), ("names", "no certificate found")] {
        let settings = Settings::new(Given {
            authority: Some(path(name)),
            ..given(&receiver, Api::Pyroscope)
        });
        let error = Pusher::start(&settings.unwrap()).err().unwrap().to_string();
        assert!(error.contains("--push-ca") && error.contains(problem), "{error}");
    }
}

fn server_config(certificate: &Path, key: &Path) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(certificate).unwrap()],
            PrivateKeyDer::from_pem_file(key).unwrap(),
        );
    Arc::new(config.unwrap())
}

/// Label values that are too long for servers are shortened.
#[test]
fn labels_are_short() {
    let mut report = report();
    report.read_at = UNIX_EPOCH;
    report.targets[0].comm = format!("a\n{}", "ä".repeat(1000));
    let receiver = Receiver::start(accepted);
    let settings = Settings::new(given(&receiver, Api::Pyroscope)).unwrap();
    let labels = Labeller::new(&settings).labels(&report, Some(&report.targets[0]));
    let comm = &labels["comm"];
    assert!(comm.starts_with("a\\nää"), "{comm}");
    assert_eq!(comm.len(), 1023);
}
