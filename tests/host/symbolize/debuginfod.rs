//! Debug files are fetched from servers: from Debian's own, and not from ones that misbehave. The former
//! needs root: it runs in a network namespace, since it listens on all interfaces, and memleak traces a
//! program in there.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memleak::symbolize::debuginfod::{Debuginfod, DebuginfodSettings, Patience};

use super::*;
use memleak_test::machine::{Feature, lacks};

/// Delay of a server that does not answer in time, and a timeout that is never reached; nothing else here
/// takes half as long.
const LONG: Duration = Duration::from_secs(60);

/// Debian's `debuginfod` on `$1`, and then `memleak` on the program `$2`; what is written goes to `$3`. `$4`
/// is a build-id that the server has when it is ready.
const SESSION: &str = r#"
    ip link set lo up
    debuginfod -F -d :memory: -p 8002 "$1" >"$3/server.log" 2>&1 &
    server=$!
    trap 'kill $server' EXIT
    export DEBUGINFOD_URLS="http://127.0.0.1:8002 ima:ignore"
    tries=0
    until DEBUGINFOD_CACHE_PATH="$3/try$tries" debuginfod-find debuginfo "$4" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ]
        sleep 0.1
    done
    DEBUGINFOD_CACHE_PATH="$3/cache" "$MEMLEAK" --debuginfod --format json -- "$2" >"$3/report" 2>"$3/messages"
    # What was fetched is there for other clients, without a server.
    DEBUGINFOD_URLS=http://127.0.0.1:1 DEBUGINFOD_CACHE_PATH="$3/cache" debuginfod-find debuginfo "$4" >"$3/found"
"#;

/// A stripped program's stacks have names, inlined functions and lines from Debian's server, each wait is
/// reported, and the file is kept where other clients look for it.
#[test]
fn debians_server_as_root() {
    program::require_root();
    if lacks(Feature::Namespaces) {
        return;
    }
    let directory = directory("debuginfod");
    let program = build(&directory, "symbols/inlined.cpp", &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program, &directory);
    let served = directory.join("served");
    keep_debug(&program, &served.join("program.debug"));
    let id = build_id(&program);
    let arguments = [text(&served), text(&stripped), text(&directory), &id];
    let status = Command::new("unshare")
        .args(["--net", "sh", "-euc", SESSION, "sh"])
        .args(arguments)
        .env("MEMLEAK", env!("CARGO_BIN_EXE_memleak"))
        .status();
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (report, messages) = (read("report"), read("messages"));
    assert!(
        status.expect("unshare runs").success(),
        "{messages}\n{}",
        read("server.log")
    );
    for name in [
        "store::Cache::grow(unsigned long)",
        "store::Cache::add(int)",
        "fill(store::Cache&, int)",
    ] {
        assert!(report.contains(name), "{name}: {report}");
    }
    let kept = directory.join("cache").join(&id).join("debuginfo");
    assert_eq!(read("found").trim(), text(&kept));
    assert!(
        messages.contains(&format!(
            "asking for the debug information of stripped (build {id})"
        )),
        "{messages}"
    );
    let is_fetched =
        |line: &str| line.contains(" stripped: ") && line.contains(" KiB from http://127.0.0.1:8002 in ");
    assert!(messages.lines().any(is_fetched), "{messages}");
    // The server is not asked for the C library, which it does not have, and whose debug file is installed.
    assert!(!messages.contains("libc.so.6"), "{messages}");
}

/// A server that has the debug file of the program `$1`, whose build-id is `$2`, asked by a memleak that
/// trusts the signer of its certificate, and by one that trusts another. What is written goes to `$3`.
const ENCRYPTED_SESSION: &str = r#"
    ip link set lo up
    cd "$3"
    key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl req -x509 $key -keyout ca.key -out ca.pem -subj /CN=ca 2>openssl.log
    openssl req $key -keyout server.key -out server.csr -subj /CN=server 2>>openssl.log
    echo subjectAltName=IP:127.0.0.1 >names
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out server.pem 2>>openssl.log
    mkdir -p "served/buildid/$2"
    objcopy --only-keep-debug program "served/buildid/$2/debuginfo"
    cd served
    openssl s_server -accept 8443 -cert ../server.pem -key ../server.key -WWW >../server.log 2>&1 &
    server=$!
    trap 'kill $server' EXIT
    until grep -q ACCEPT ../server.log; do sleep 0.1; done
    export DEBUGINFOD_URLS=https://127.0.0.1:8443
    mv ../ca.pem ../trusted.pem
    openssl req -x509 $key -keyout other.key -out ../untrusted.pem -subj /CN=ca 2>>../openssl.log
    for way in trusted untrusted; do
        SSL_CERT_FILE="../$way.pem" DEBUGINFOD_CACHE_PATH="../$way" \
            "$MEMLEAK" --debuginfod --format json -- "$1" >"../$way.report" 2>"../$way.messages"
    done
"#;

/// Servers are asked through TLS, and not used unless the system's certificates vouch for them.
#[test]
fn encrypted_servers_as_root() {
    program::require_root();
    if lacks(Feature::Namespaces) {
        return;
    }
    let directory = directory("debuginfod-tls");
    let flags = ["-g", "-Wl,--build-id", "-static-libstdc++", "-static-libgcc"];
    let program = build(&directory, "symbols/inlined.cpp", &flags);
    let stripped = strip(&program, &directory);
    let status = Command::new("unshare")
        .args(["--net", "sh", "-euc", ENCRYPTED_SESSION, "sh"])
        .args([text(&stripped), &build_id(&program), text(&directory)])
        .env("MEMLEAK", env!("CARGO_BIN_EXE_memleak"))
        .status();
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (trusted, untrusted) = (read("trusted.messages"), read("untrusted.messages"));
    let logs = format!("{trusted}\n{untrusted}\n{}", read("openssl.log"));
    assert!(status.expect("unshare runs").success(), "{logs}");
    assert!(
        read("trusted.report").contains("store::Cache::add(int)"),
        "{logs}"
    );
    assert!(
        !read("untrusted.report").contains("store::Cache::add(int)"),
        "{logs}"
    );
    let warnings: Vec<&str> = untrusted
        .lines()
        .filter(|line| line.contains("warning: debuginfod"))
        .collect();
    assert!(
        matches!(warnings[..], [line] if line.contains("it is not asked again")),
        "{logs}"
    );
}

/// Without servers, or a directory for their files, the program is not started, and the error names the
/// remedy.
#[test]
fn refusals_as_root() {
    program::require_root();
    let refused = |urls: &str, cache: &str, remedy: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["--debuginfod", "--", "touch", "/proc/started"])
            .envs([("DEBUGINFOD_URLS", urls), ("DEBUGINFOD_CACHE_PATH", cache)])
            .output();
        let output = output.expect("memleak was built");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), errors.lines().count()),
            (Some(2), 1),
            "{errors}"
        );
        assert!(errors.contains(remedy), "{errors}");
    };
    refused("localhost:8002", "/tmp", "DEBUGINFOD_URLS=https://");
    refused(
        "http://localhost:8002",
        "/dev/null/cache",
        "another directory in DEBUGINFOD_CACHE_PATH",
    );
}

/// A server that answers every request with `answer`, until it is dropped.
struct FakeServer {
    address: String,
    requests: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
}

impl FakeServer {
    fn start(answer: impl Fn(&mut TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("its address"));
        let (requests, ended) = (Arc::default(), Arc::default());
        let server = Self {
            address,
            requests: Arc::clone(&requests),
            ended: Arc::clone(&ended),
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                requests.fetch_add(1, Ordering::Relaxed);
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                answer(&mut reader.into_inner());
            }
        });
        server
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the server, so that it sees that it has to end.
        drop(TcpStream::connect(self.address.trim_start_matches("http://")));
    }
}

fn send(stream: &mut TcpStream, status: &str, body: &[u8]) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // A client need not read the whole answer.
    _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
}

/// A stripped program, and where files of servers are kept.
struct Setting {
    program: PathBuf,
    stripped: PathBuf,
    debug: Vec<u8>,
    cache: PathBuf,
    /// Maximum time for an answer of a server.
    timeout: Duration,
}

impl Setting {
    fn new(test: &str) -> Self {
        let directory = directory(&format!("debuginfod-{test}"));
        let program = build(&directory, "symbols/inlined.cpp", &["-g", "-Wl,--build-id"]);
        let debug = directory.join("program.debug");
        keep_debug(&program, &debug);
        Self {
            stripped: strip(&program, &directory),
            program,
            debug: fs::read(debug).expect("it was made"),
            cache: directory.join("cache"),
            timeout: Duration::from_secs(2),
        }
    }

    /// The stripped program, with names from `servers`, for which `patience` waits.
    fn subject(&self, servers: &[&str], patience: Patience) -> Subject {
        let settings = DebuginfodSettings {
            servers: servers.iter().map(ToString::to_string).collect(),
            cache: self.cache.clone(),
            timeout: self.timeout,
            max_time: 2 * self.timeout,
            max_size: 1 << 20,
        };
        let mut subject = Subject::in_root(&self.stripped, Path::new("/opt/program"), Vec::new());
        let servers = Debuginfod::start(settings).expect("a directory that can be made");
        subject.symbolizer = Symbolizer::new(Vec::new()).with_servers(Some(servers));
        subject.symbolizer.begin(patience);
        subject
    }

    /// Returns the size of the file that is kept for the program, if there is one; 0 for a noted miss.
    fn kept(&self) -> Option<u64> {
        let file = self.cache.join(build_id(&self.program)).join("debuginfo");
        Some(fs::metadata(file).ok()?.len())
    }
}

/// Answers of misbehaving servers leave code without names and do nothing else: another object's file, no
/// file, too large a one, none in time, a part of one. The next server is asked.
#[test]
fn bad_servers() {
    let setting = Setting::new("bad");
    let another = fs::read(library("libc.so.6")).expect("libc");
    let half = setting.debug[..setting.debug.len() / 2].to_vec();
    let whole = setting.debug.len();
    let bad = [
        FakeServer::start(move |stream| send(stream, "200 OK", &another)),
        FakeServer::start(|stream| send(stream, "503 Busy", b"later")),
        FakeServer::start(|stream| send(stream, "200 OK", &vec![0; 2 << 20])),
        FakeServer::start(|_| thread::sleep(LONG)),
        FakeServer::start(move |stream| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {whole}\r\n\r\n");
            _ = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(&half));
        }),
        FakeServer::start(|stream| send(stream, "not HTTP", b"")),
    ];
    let addresses: Vec<&str> = bad.iter().map(|server| server.address.as_str()).collect();
    for server in &addresses {
        let began = Instant::now();
        check_no_names(&mut setting.subject(&[server], Patience::Long));
        assert!(began.elapsed() < LONG / 2, "{server}");
        assert_eq!(setting.kept(), None, "a failure is not kept as an answer");
    }
    let debug = setting.debug.clone();
    let good = FakeServer::start(move |stream| send(stream, "200 OK", &debug));
    let refusing = "http://127.0.0.1:1";
    let servers = [refusing, addresses[1], &good.address];
    check_same_names(&setting.program, &mut setting.subject(&servers, Patience::Long));
    assert_eq!(setting.kept(), Some(setting.debug.len() as u64));
    assert_eq!((good.requests(), bad[1].requests()), (1, 2));
    // A file that is kept needs no server.
    check_same_names(
        &setting.program,
        &mut setting.subject(&[refusing], Patience::None),
    );
}

/// Misses are noted: a file that no server has is not asked for again for some time.
#[test]
fn misses_are_kept() {
    let setting = Setting::new("miss");
    let server = FakeServer::start(|stream| send(stream, "404 Not Found", b"no"));
    for _ in 0..2 {
        check_no_names(&mut setting.subject(&[&server.address], Patience::Long));
        assert_eq!((setting.kept(), server.requests()), (Some(0), 1));
    }
    fs::write(setting.cache.join("cache_miss_s"), "0").expect("a file of ours");
    check_no_names(&mut setting.subject(&[&server.address], Patience::Long));
    assert_eq!(server.requests(), 2);
}

/// Reports during a trace do not wait for servers: files that have come by the next report are used there,
/// even for addresses that were looked up before. The last report waits until it is asked to stop waiting.
#[test]
fn only_the_last_report_waits() {
    let mut setting = Setting::new("patience");
    setting.timeout = LONG;
    let debug = setting.debug.clone();
    let (allow, is_allowed) = mpsc::channel();
    let server = FakeServer::start(move |stream| {
        is_allowed.recv().expect("it is allowed some time");
        send(stream, "200 OK", &debug);
    });
    let began = Instant::now();
    let mut subject = setting.subject(&[&server.address], Patience::None);
    check_no_names(&mut subject);
    subject.symbolizer.release();
    let stop = Arc::new(AtomicBool::new(true));
    subject.symbolizer.begin(Patience::Until(stop));
    check_no_names(&mut subject);
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    allow.send(()).expect("the server runs");
    subject.symbolizer.begin(Patience::Long);
    check_same_names(&setting.program, &mut subject);
    assert_eq!(server.requests(), 1);
}
