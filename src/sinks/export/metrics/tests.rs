//! The page of a report as Prometheus' own library parses it, and well- and ill-behaved clients.

mod monitoring;
mod pinned;

use leak_report::samples;
use memleak_test::profiles::pprof_command;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::push::Counts;
use super::*;
use leak_report::model::{Frame, Symbol, Symbolized};

/// Parses a page with Python's `prometheus_client`: each series with its value. Fails if the parser prints
/// anything else.
fn read(page: &str) -> Vec<String> {
    const SCRIPT: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    assert family.type in ('counter', 'gauge') and family.documentation, family
    for sample in family.samples:
        assert sample.name.endswith('_total') == (family.type == 'counter'), sample
        print(sample.name, sorted(sample.labels.items()), sample.value)
";
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("apt-get install python3 python3-prometheus-client");
    python.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{page}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let series = page.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.len(), series.count(), "{page}");
    lines
}

/// With a verdict, the page has the amount of each of its classes and the lost amount of each site, and a
/// small site with lost blocks comes before a large one without. Without a verdict, it has none of these
/// metrics.
#[test]
fn page_of_a_verdict() {
    let mut report = samples::judged();
    report.stacks[1].verdict = report.stacks[0].verdict.replace(Default::default());
    report.judgement.as_mut().unwrap().freed_later.blocks = 3;
    let series = read(&page::of_report(&report, 1));
    let with = |name: &str| -> Vec<_> {
        let series = series.iter();
        let named = series.filter(|line| line.split(' ').next() == Some(name));
        named.map(|line| line.rsplit(' ').next().unwrap()).collect()
    };
    for (name, values) in [
        ("memleak_definitely_lost_bytes", &["320.0"][..]),
        ("memleak_definitely_lost_blocks", &["8.0"]),
        ("memleak_indirectly_lost_blocks", &["1.0"]),
        ("memleak_reachable_bytes", &["80.0"]),
        ("memleak_unjudged_blocks", &["1.0"]),
        ("memleak_falsely_lost_blocks_total", &["3.0"]),
        ("memleak_verdict_passes", &["5.0"]),
        ("memleak_verdict_seconds", &["3.2"]),
        ("memleak_site_definitely_lost_blocks", &["8.0", "0.0"]),
        ("memleak_site_outstanding_blocks", &["1.0", "12.0"]),
    ] {
        assert_eq!(with(name), values, "{name}");
    }
    let without = page::of_report(&samples::full(), 1);
    for part in ["definitely", "reachable", "verdict", "falsely"] {
        assert!(!without.contains(part), "{part}");
    }
}

/// Page of the sample report with everything.
const FULL_PAGE: &str = r#"# HELP memleak_build_info The version of memleak; always 1.
# TYPE memleak_build_info gauge
memleak_build_info{version="VERSION"} 1
# HELP memleak_report_timestamp_seconds Time of the last report, which all metrics of this page describe.
# TYPE memleak_report_timestamp_seconds gauge
memleak_report_timestamp_seconds 1700000000
# HELP memleak_trace_duration_seconds Time from the attach to the last report.
# TYPE memleak_trace_duration_seconds gauge
memleak_trace_duration_seconds 12.345
# HELP memleak_allocations_total Blocks allocated, including lost ones.
# TYPE memleak_allocations_total counter
memleak_allocations_total 30
# HELP memleak_frees_total Blocks freed that were known.
# TYPE memleak_frees_total counter
memleak_frees_total 8
# HELP memleak_unknown_frees_total Blocks freed that were not known: allocated before the attach, or lost.
# TYPE memleak_unknown_frees_total counter
memleak_unknown_frees_total 3
# HELP memleak_failed_allocations_total Calls that the allocator refused.
# TYPE memleak_failed_allocations_total counter
memleak_failed_allocations_total 1
# HELP memleak_missed_frees_total Blocks whose free was not seen, but whose address was allocated again.
# TYPE memleak_missed_frees_total counter
memleak_missed_frees_total 0
# HELP memleak_filtered_allocations_total Calls whose sizes are not recorded.
# TYPE memleak_filtered_allocations_total counter
memleak_filtered_allocations_total 0
# HELP memleak_filtered_bytes_total Bytes requested by calls whose sizes are not recorded.
# TYPE memleak_filtered_bytes_total counter
memleak_filtered_bytes_total 0
# HELP memleak_outstanding_bytes Bytes allocated and not freed.
# TYPE memleak_outstanding_bytes gauge
memleak_outstanding_bytes 520
# HELP memleak_outstanding_blocks Blocks allocated and not freed.
# TYPE memleak_outstanding_blocks gauge
memleak_outstanding_blocks 13
# HELP memleak_process_outstanding_bytes Bytes allocated and not freed, by running process.
# TYPE memleak_process_outstanding_bytes gauge
memleak_process_outstanding_bytes{pid="4242",comm="leaker"} 520
# HELP memleak_process_outstanding_blocks Blocks allocated and not freed, by running process.
# TYPE memleak_process_outstanding_blocks gauge
memleak_process_outstanding_blocks{pid="4242",comm="leaker"} 13
# HELP memleak_process_resident_bytes Resident memory of the processes.
# TYPE memleak_process_resident_bytes gauge
# HELP memleak_site_outstanding_bytes Bytes allocated and not freed, by the calling stack that allocated them.
# TYPE memleak_site_outstanding_bytes gauge
memleak_site_outstanding_bytes{site="1e6988377927152b",allocator="malloc",function="LeakLib::slowMemoryLeak()",module="leaker",pid="4242"} 480
memleak_site_outstanding_bytes{site="b60eefd1c9f167ae",allocator="malloc",function="libplugin.so+0x1234",module="libplugin.so",pid="4242"} 40
memleak_site_outstanding_bytes{site="other"} 0
# HELP memleak_site_outstanding_blocks Blocks allocated and not freed, by the calling stack that allocated them.
# TYPE memleak_site_outstanding_blocks gauge
memleak_site_outstanding_blocks{site="1e6988377927152b",allocator="malloc",function="LeakLib::slowMemoryLeak()",module="leaker",pid="4242"} 12
memleak_site_outstanding_blocks{site="b60eefd1c9f167ae",allocator="malloc",function="libplugin.so+0x1234",module="libplugin.so",pid="4242"} 1
memleak_site_outstanding_blocks{site="other"} 0
# HELP memleak_lost_blocks_total Blocks that were allocated and could not be recorded, by cause.
# TYPE memleak_lost_blocks_total counter
memleak_lost_blocks_total{cause="block_table_full"} 9
memleak_lost_blocks_total{cause="stack_table_full"} 0
# HELP memleak_lost_bytes_total Bytes of blocks that could not be recorded.
# TYPE memleak_lost_bytes_total counter
memleak_lost_bytes_total 1600000
# HELP memleak_lost_frees_total Frees that were not seen: their blocks still count as outstanding.
# TYPE memleak_lost_frees_total counter
memleak_lost_frees_total 0
# HELP memleak_lost_processes_total Processes that were not traced though they should have been.
# TYPE memleak_lost_processes_total counter
memleak_lost_processes_total 0
# HELP memleak_lost_beginnings_total Programs executed by traced processes whose first allocations were not seen.
# TYPE memleak_lost_beginnings_total counter
memleak_lost_beginnings_total 0
# HELP memleak_lost_events_total Notices of mapping changes that came too late or not at all.
# TYPE memleak_lost_events_total counter
memleak_lost_events_total 0
# HELP memleak_lost_calls_total Calls missing from the call trace (-t).
# TYPE memleak_lost_calls_total counter
memleak_lost_calls_total 0
# HELP memleak_unfinished_walks_total Walks that ended at code that had just been mapped, for want of room.
# TYPE memleak_unfinished_walks_total counter
memleak_unfinished_walks_total 0
# HELP memleak_stacks Distinct stacks that allocated, by how their walk ended.
# TYPE memleak_stacks gauge
memleak_stacks{end="complete"} 2
memleak_stacks{end="no_cfi"} 1
# HELP memleak_stack_allocations Blocks allocated by these stacks, by how their walk ended.
# TYPE memleak_stack_allocations gauge
memleak_stack_allocations{end="complete"} 28
memleak_stack_allocations{end="no_cfi"} 2
# HELP memleak_resident_memory_bytes Resident memory of memleak itself.
# TYPE memleak_resident_memory_bytes gauge
memleak_resident_memory_bytes 47185920
# HELP memleak_kernel_memory_bytes Memory of memleak's maps in the kernel.
# TYPE memleak_kernel_memory_bytes gauge
memleak_kernel_memory_bytes 104857600
"#;

/// The page has every value of a report, in the report's order.
#[test]
fn page_of_a_full_report() {
    let page = page::of_report(&samples::full(), 20).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    assert_eq!(page, FULL_PAGE);
    read(&page);
}

/// Before the first report, the page has the version and the push counters.
#[test]
fn page_before_reports() {
    let counts = Counts {
        sent: 5,
        waiting: 2,
        ..Counts::default()
    };
    let page = page::before_reports() + &page::of_push(&counts);
    let lines = read(&page.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    assert_eq!(
        lines,
        [
            "memleak_build_info [('version', 'VERSION')] 1.0",
            "memleak_push_sent_profiles_total [] 5.0",
            "memleak_push_lost_profiles_total [('cause', 'buffer_full')] 0.0",
            "memleak_push_lost_profiles_total [('cause', 'refused')] 0.0",
            "memleak_push_lost_profiles_total [('cause', 'given_up')] 0.0",
            "memleak_push_lost_profiles_total [('cause', 'unsent')] 0.0",
            "memleak_push_retries_total [] 0.0",
            "memleak_push_waiting_profiles [] 2.0",
        ]
    );
}

/// Program and function names can contain any characters, and are escaped; sites beyond the limit are summed,
/// and equal sites are merged.
#[test]
fn hostile_names_and_many_sites() {
    let mut report = samples::full();
    report.targets[0].comm = "a\"b\\c\n{}".to_owned();
    let symbol = Symbol {
        name: "f<\"\\\">, ü\t".into(),
        offset: None,
    };
    let names = Symbolized {
        symbol: Some(symbol),
        ..Symbolized::default()
    };
    samples::change_frames(&mut report, 0, |frames| {
        frames[1] = samples::renamed(frames[1], &names)
    });
    report.stacks[2] = report.stacks[0].clone();
    let lines = read(&page::of_report(&report, 1));
    let of = |name: &str| -> Vec<&String> {
        let lines = lines.iter();
        lines.filter(|line| line.starts_with(name)).collect()
    };
    let processes = of("memleak_process_outstanding_bytes");
    assert_eq!(
        processes,
        [r#"memleak_process_outstanding_bytes [('comm', 'a"b\\c\\n{}'), ('pid', '4242')] 1000.0"#]
    );
    let [first, other] = of("memleak_site_outstanding_bytes")[..] else {
        panic!("{lines:?}")
    };
    assert!(
        first.contains(r#"('function', 'f<"\\">, ü\\t')"#) && first.ends_with(" 960.0"),
        "{first}"
    );
    assert_eq!(other, "memleak_site_outstanding_bytes [('site', 'other')] 40.0");
    let without = page::of_report(&report, 0);
    assert!(!without.contains("_site_"), "{without}");
}

/// A site's ID does not depend on where its code is loaded.
#[test]
fn names_of_sites() {
    let report = samples::full();
    let mut moved = report.clone();
    let move_up = |frame: &mut Frame| {
        if frame.at.place.is_some() {
            frame.at.pc = frame.at.pc.wrapping_add(0x1000);
        }
    };
    for stack in 0..moved.stacks.len() {
        samples::change_frames(&mut moved, stack, |frames| {
            frames
                .iter_mut()
                .for_each(|frame| *frame = samples::changed(*frame, move_up));
        });
    }
    let (sites, others) = sites::largest(&report, 20);
    assert_eq!(sites, sites::largest(&moved, 20).0);
    assert_eq!(others, sites::Amounts::default());
    let ids: Vec<&str> = sites.iter().map(|site| site.id.as_str()).collect();
    // A change here changes the site IDs in every dashboard.
    insta::assert_snapshot!(ids.join(" "), @"1e6988377927152b b60eefd1c9f167ae");
}

fn served() -> (Metrics, String) {
    let settings = Settings {
        address: Address::parse(":0").unwrap(),
        sites: 20,
    };
    let (metrics, address) = Metrics::start_at(&settings, None).unwrap();
    (metrics, address.to_string())
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    answer(stream)
}

fn answer(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The page of the last report is at its path; every other request gets the matching error status.
#[test]
fn requests() {
    let (metrics, address) = served();
    let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let before = ask(&address, get);
    assert!(!before.contains("memleak_outstanding_bytes"), "{before}");
    metrics.take(&Arc::new(samples::full()));
    let after = ask(&address, get);
    let (head, body) = after.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(
        head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
        "{head}"
    );
    assert_eq!(body, page::of_report(&samples::full(), 20));
    let only_head = ask(&address, &get.replace("GET", "HEAD"));
    assert_eq!(only_head, format!("{head}\r\n\r\n"));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(100));
    let with_body = "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
    for (request, status) in [
        ("GET /metrics?x=y HTTP/1.0\r\n\r\n", "200 OK"),
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("HEAD /metrics/ HTTP/1.1\r\n\r\n", "404 Not Found"),
        (with_body, "405 Method Not Allowed\r\n"),
        ("GET\r\n\r\n", "400 Bad Request"),
        ("\u{16}\u{3}\u{1}\r\n\r\n", "400 Bad Request"),
        ("GET /metrics HTTP/2.0\r\n\r\n", "505 "),
        (&long, "431 "),
        (&many, "431 "),
    ] {
        let answer = ask(&address, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
    }
    assert!(ask(&address, with_body).contains("\r\nAllow: GET, HEAD\r\n"));
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(b"GET /metrics").unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(answer(half).starts_with("HTTP/1.1 400 "));
}

/// Output of Go's `pprof` about a profile that it fetches itself, and its messages.
fn fetched(url: &str) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let output = pprof_command(directory.path())
        .args(["-raw", url])
        .env("TZ", "UTC")
        .output()
        .expect("apt-get install golang-go");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().take_while(|line| *line != "Locations");
    let text = lines
        .map(|line| format!("{}\n", line.trim_end()))
        .collect::<String>();
    (text.replace(env!("CARGO_PKG_VERSION"), "VERSION"), errors)
}

/// Go's `pprof` fetches the two profiles, which differ in the sample type that is shown by default, and needs
/// nothing else to name frames.
#[test]
fn profiles_for_pprof() {
    let (metrics, address) = served();
    metrics.take(&Arc::new(samples::full()));
    let (heap, messages) = fetched(&format!("http://{address}/debug/pprof/heap"));
    assert_eq!(
        messages
            .lines()
            .filter(|line| !line.starts_with("Fetching "))
            .count(),
        1,
        "{messages}"
    );
    assert!(messages.contains("Saved profile in "), "{messages}");
    insta::assert_snapshot!(heap, @r"
Comment: memleak VERSION
Comment: complete stacks: 93.3% of allocations
Comment: lost: 9 blocks, 1.5 MiB
PeriodType: space bytes
Period: 1
Time: 2023-11-14 22:13:20 +0000 UTC
Samples:
alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]
         24        960         12        480: 2
                allocator:[malloc] comm:[leaker] end:[complete]
                pid:[4242]
          2         80          1         40: 3 4 5
                allocator:[malloc] comm:[leaker] end:[no_cfi]
                pid:[4242]
");
    let (allocs, _) = fetched(&format!("http://{address}/debug/pprof/allocs?seconds=0"));
    let as_allocs = heap.replace("inuse_space/bytes[dflt]", "inuse_space/bytes");
    assert_eq!(
        allocs,
        as_allocs.replace("alloc_space/bytes", "alloc_space/bytes[dflt]")
    );
    // The profile of the next report replaces it.
    let mut next = samples::full();
    next.stacks.truncate(1);
    metrics.take(&Arc::new(next));
    let (heap, _) = fetched(&format!("http://{address}/debug/pprof/heap"));
    assert!(!heap.contains("end:[no_cfi]"), "{heap}");
}

/// Profiles have the headers of Go's `net/http/pprof`; there is no profile before the first report, over a
/// span of time, or as text.
#[test]
fn requests_for_profiles() {
    let (metrics, address) = served();
    let head_of = |method: &str, target: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        let body = answer.split_off(end + 4);
        (String::from_utf8(answer).unwrap(), body)
    };
    let (early, _) = head_of("GET", "/debug/pprof/heap");
    assert!(
        early.starts_with("HTTP/1.1 503 ") && early.contains("\r\nRetry-After: 5\r\n"),
        "{early}"
    );
    metrics.take(&Arc::new(samples::full()));
    for name in ["heap", "allocs"] {
        let (head, body) = head_of("GET", &format!("/debug/pprof/{name}?gc=1&debug=0"));
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"),
            "{head}"
        );
        let disposition = format!("\r\nContent-Disposition: attachment; filename=\"{name}\"\r\n");
        assert!(head.contains(&disposition), "{head}");
        assert!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
            "{head}"
        );
        assert_eq!(body[..2], [0x1f, 0x8b], "gzip");
        assert_eq!(
            head_of("HEAD", &format!("/debug/pprof/{name}")),
            (head, Vec::new())
        );
    }
    for (method, target, status, line) in [
        ("GET", "/debug/pprof/heap?seconds=5", "400", "leave `seconds` out"),
        ("GET", "/debug/pprof/allocs?x&debug=1", "400", "leave `debug` out"),
        ("GET", "/debug/pprof/", "404", "/debug/pprof/heap"),
        ("GET", "/debug/pprof/profile", "404", "/debug/pprof/allocs"),
        ("POST", "/debug/pprof/heap", "405", "/debug/pprof/heap"),
    ] {
        let (head, body) = head_of(method, target);
        let body = String::from_utf8(body).unwrap();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")) && body.contains(line),
            "{head}\n{body}"
        );
        assert_eq!(body.lines().count(), 2, "{body}");
    }
}

/// A profile is made once for each report, however often it is asked for.
#[test]
fn profiles_are_made_once() {
    let profiles = profiles::Profiles::of(Arc::new(samples::full()));
    let [one, other] = [(); 2].map(|()| profiles.profile(leak_report::render::Shown::Outstanding).unwrap());
    assert!(Arc::ptr_eq(&one, &other));
}

/// On loopback, requests with a foreign `Host` name are refused, and those with `localhost` or an IP address
/// are answered, so that no web page can read the metrics (DNS rebinding).
#[test]
fn hosts_of_others() {
    let (_metrics, address) = served();
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    let get = |address: &str, host: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOST: {host}\r\n\r\n");
        ask(address, &request)[..13].to_owned()
    };
    for host in [
        &*address,
        "localhost",
        "LocalHost:1",
        "[::1]",
        &format!("[::1]:{port}"),
        "10.0.0.1",
    ] {
        assert_eq!(get(&address, host), "HTTP/1.1 200 ", "{host}");
    }
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "[evil]",
        "",
        "é",
    ] {
        assert_eq!(get(&address, host), "HTTP/1.1 421 ", "{host}");
    }
    let profile = ask(
        &address,
        "GET /debug/pprof/heap HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    );
    assert!(profile.starts_with("HTTP/1.1 421 "), "{profile}");
    // On a public address any host name is accepted.
    let settings = Settings {
        address: Address::parse("0.0.0.0:0").unwrap(),
        sites: 0,
    };
    let (_open, address) = Metrics::start_at(&settings, None).unwrap();
    let address = format!("127.0.0.1:{}", address.port());
    assert_eq!(get(&address, "host.example"), "HTTP/1.1 200 ");
}

/// Clients are disconnected after a few seconds, even if they keep sending slowly; when all slots are taken,
/// others get a 503 at once.
#[test]
fn slow_clients() {
    let (_metrics, address) = served();
    let slow: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let get = "GET /metrics HTTP/1.1\r\n\r\n";
    // The listening socket's queue is accepted in order, so the earlier clients have their slots by now.
    let refused = answer(TcpStream::connect(&address).unwrap());
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    for mut stream in slow {
        _ = stream.write_all(b"GET /met");
        let answer = answer(stream);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let mut tries = 0;
    while !ask(&address, get).starts_with("HTTP/1.1 200 ") {
        tries += 1;
        assert!(tries < 100, "a place becomes free");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A port in use is an error that names the remedy.
#[test]
fn taken_ports() {
    let (_metrics, address) = served();
    let settings = Settings {
        address: Address::parse(&address).unwrap(),
        sites: 0,
    };
    let error = Metrics::start(&settings, None).err().unwrap().to_string();
    assert!(
        error.contains(&address) && error.contains("another address"),
        "{error}"
    );
}

/// `is_open` is true for all but loopback addresses.
#[test]
fn open_addresses() {
    for (text, open) in [
        (":1", false),
        ("127.1.2.3:1", false),
        ("[::1]:1", false),
        ("0.0.0.0:1", true),
        ("[::]:1", true),
        ("10.0.0.1:1", true),
    ] {
        assert_eq!(Address::parse(text).unwrap().is_open(), open, "{text}");
    }
}

/// Sites in functions of Python have `[python]` for their module, and a module's code is named after its
/// file.
#[test]
fn sites_of_python() {
    let mut report = samples::python::python();
    let main = samples::python::function(7, Some("<module>"), Some(("/opt/app/main.py", 3)));
    samples::change_frames(&mut report, 1, |frames| _ = frames.remove(0));
    samples::change_frames(&mut report, 2, |frames| *frames = vec![main]);
    let (sites, _) = sites::largest(&report, 20);
    let found: Vec<_> = sites
        .iter()
        .map(|site| (&*site.function, &*site.module))
        .collect();
    let main = ("<module> main.py", "[python]");
    assert_eq!(found, [("fetch_rows", "[python]"), main, main]);
}
