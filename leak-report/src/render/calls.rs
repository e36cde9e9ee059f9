//! Calls told one by one (`-t`), a line each, and what becomes of reports meanwhile.
//!
//! bcc's memleak prints what the kernel's trace pipe gives it, as Python shows it, and nothing else; libbpf-tools'
//! leaves its lines in that pipe, where they are read by other means, and reports as ever. Here the first dialect's
//! lines go to standard output, the second's, as the pipe has them, to standard error. In both the pipe's flags say
//! nothing.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use unwind_tables::addr::Avma;

use super::Format;
use crate::model::printable::Printable;
use crate::model::{CallKind, CallTrace, Name};

/// A call of an allocator function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is told of it.
    pub kind: CallKind,
    /// When, since the attach.
    pub elapsed: Duration,
    /// The same by the kernel's monotonic clock.
    pub clock: Duration,
    /// The process.
    pub pid: u32,
    /// The thread, in the initial pid namespace.
    pub thread: u32,
    /// What it is called.
    pub comm: String,
    /// Where it runs.
    pub cpu: u32,
    /// The function; of a free, the one that allocated the block.
    pub allocator: Name,
    /// The block's; 0 if there is none.
    pub address: Avma,
    /// The bytes that were asked for; 0 of a block that is not known.
    pub size: u64,
    /// Who called the function, as far as is known.
    pub caller: Option<Arc<str>>,
}

/// What becomes of reports while calls are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// They are made as ever.
    Each,
    /// There is one at the end.
    Last,
    /// There are none.
    None,
}

/// How a format tells calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallsTold {
    /// Which.
    pub told: CallTrace,
    /// What becomes of reports.
    pub reports: Reports,
    /// Lines go to standard error, standard output being for reports alone.
    pub aside: bool,
}

type Line = fn(&Call) -> Option<String>;

/// Formats that tell calls.
const FORMATS: &[(Format, CallsTold, Line)] = &[
    (
        Format::Text,
        CallsTold {
            told: CallTrace::Ends,
            reports: Reports::Last,
            aside: false,
        },
        |call| Some(text(call)),
    ),
    (
        Format::Json,
        CallsTold {
            told: CallTrace::Ends,
            reports: Reports::Last,
            aside: false,
        },
        json,
    ),
    (
        Format::Bcc,
        CallsTold {
            told: CallTrace::All,
            reports: Reports::None,
            aside: false,
        },
        bcc,
    ),
    (
        Format::Libbpf,
        CallsTold {
            told: CallTrace::All,
            reports: Reports::Each,
            aside: true,
        },
        libbpf,
    ),
];

impl Format {
    /// How it tells calls; `None` if it cannot.
    pub fn calls_told(self) -> Option<CallsTold> {
        let mut rows = FORMATS.iter();
        rows.find_map(|&(format, told, _)| (format == self).then_some(told))
    }

    /// The line for a call, if there is one.
    pub fn call_line(self, call: &Call) -> Option<String> {
        let mut rows = FORMATS.iter();
        rows.find_map(|&(format, _, line)| (format == self).then_some(line))?(call)
    }
}

fn text(call: &Call) -> String {
    let Call {
        allocator,
        address,
        size,
        thread,
        ..
    } = call;
    let allocator = Printable(allocator);
    let mut line = format!(
        "{:>12.6} {}/{thread} ",
        call.elapsed.as_secs_f64(),
        Printable(&call.comm)
    );
    // Writing to memory does not fail.
    _ = match call.kind {
        CallKind::Begins => write!(line, "{allocator}({size}) …"),
        CallKind::Allocated => write!(line, "{allocator}({size}) = {address:#x}"),
        CallKind::Failed => write!(line, "{allocator}({size}) failed"),
        CallKind::Freed => write!(line, "freed {address:#x}, {size} B of {allocator}"),
        CallKind::UnknownFreed => write!(line, "freed {address:#x}, which is not known"),
    };
    if let Some(caller) = &call.caller {
        _ = write!(line, " by {}", Printable(caller));
    }
    line
}

#[derive(Serialize)]
struct CallJson<'a> {
    schema_version: u32,
    event: &'static str,
    time_ns: u64,
    pid: u32,
    thread: u32,
    comm: &'a str,
    cpu: u32,
    allocator: Option<&'a str>,
    address: Option<String>,
    bytes: Option<u64>,
    caller: Option<&'a str>,
}

fn json(call: &Call) -> Option<String> {
    let is_known = call.kind != CallKind::UnknownFreed;
    let line = CallJson {
        schema_version: super::json::SCHEMA_VERSION,
        event: match call.kind {
            CallKind::Begins => "call",
            CallKind::Allocated => "allocation",
            CallKind::Failed => "failure",
            CallKind::Freed => "free",
            CallKind::UnknownFreed => "unknown_free",
        },
        time_ns: u64::try_from(call.elapsed.as_nanos()).unwrap_or(u64::MAX),
        pid: call.pid,
        thread: call.thread,
        comm: &call.comm,
        cpu: call.cpu,
        allocator: is_known.then_some(&*call.allocator),
        address: (call.address != Avma::new(0)).then(|| format!("{:#x}", call.address)),
        bytes: is_known.then_some(call.size),
        caller: call.caller.as_deref(),
    };
    let mut text = Vec::new();
    super::json::write(&line, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// What the originals write into the trace pipe.
fn message(call: &Call) -> Option<String> {
    let Call { address, size, .. } = call;
    match call.kind {
        CallKind::Begins => Some(format!("alloc entered, size = {size}")),
        CallKind::Allocated | CallKind::Failed => {
            Some(format!("alloc exited, size = {size}, result = {address:x}"))
        }
        CallKind::Freed => Some(format!("free entered, address = {address:x}, size = {size}")),
        CallKind::UnknownFreed => None,
    }
}

/// The pipe's flags (interrupts, preemption) are not known.
const FLAGS: &str = ".....";

fn bcc(call: &Call) -> Option<String> {
    let Call { thread, cpu, .. } = call;
    let (comm, message) = (python_bytes(&call.comm), message(call)?);
    // The pipe has microseconds, and Python leaves out zeros at the end.
    let time = format!("{:.6}", call.clock.as_secs_f64());
    let time = time.trim_end_matches('0');
    let point = if time.ends_with('.') { "0" } else { "" };
    Some(format!(
        "({comm}, {thread}, {cpu}, b'{FLAGS}', {time}{point}, b'{message}')"
    ))
}

/// As Python shows bytes.
fn python_bytes(text: &str) -> String {
    let quote = match (text.contains('\''), text.contains('"')) {
        (true, false) => '"',
        _ => '\'',
    };
    let mut shown = format!("b{quote}");
    for byte in text.bytes() {
        _ = match byte {
            b'\\' => write!(shown, "\\\\"),
            _ if char::from(byte) == quote => write!(shown, "\\{quote}"),
            b' '..=b'~' => write!(shown, "{}", char::from(byte)),
            b'\t' => write!(shown, "\\t"),
            b'\n' => write!(shown, "\\n"),
            b'\r' => write!(shown, "\\r"),
            _ => write!(shown, "\\x{byte:02x}"),
        };
    }
    shown.push(quote);
    shown
}

fn libbpf(call: &Call) -> Option<String> {
    let Call { thread, cpu, .. } = call;
    let (comm, message) = (Printable(&call.comm).to_string(), message(call)?);
    let (seconds, microseconds) = (call.clock.as_secs(), call.clock.subsec_micros());
    Some(format!(
        "{comm:>16}-{thread:<7} [{cpu:03}] {FLAGS} {seconds:>5}.{microseconds:06}: bpf_trace_printk: {message}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: CallKind) -> Call {
        Call {
            kind,
            elapsed: Duration::from_micros(1_234_567),
            clock: Duration::from_micros(98_765_432_100),
            pid: 4242,
            thread: 4243,
            comm: "leaker".to_owned(),
            cpu: 1,
            allocator: "malloc".into(),
            address: match kind {
                CallKind::Begins | CallKind::Failed => Avma::new(0),
                CallKind::Allocated | CallKind::Freed | CallKind::UnknownFreed => Avma::new(0x55d0_1234),
            },
            size: 24,
            caller: (kind != CallKind::UnknownFreed).then(|| "main+0x31 [leaker]".into()),
        }
    }

    const ALL: [CallKind; 5] = [
        CallKind::Begins,
        CallKind::Allocated,
        CallKind::Failed,
        CallKind::Freed,
        CallKind::UnknownFreed,
    ];

    fn lines(format: Format) -> Vec<String> {
        ALL.iter()
            .filter_map(|&kind| format.call_line(&call(kind)))
            .collect()
    }

    /// Lines for people; none has the word that scripts search for.
    #[test]
    fn text_of_calls() {
        let lines = lines(Format::Text);
        assert_eq!(
            lines,
            [
                "    1.234567 leaker/4243 malloc(24) … by main+0x31 [leaker]",
                "    1.234567 leaker/4243 malloc(24) = 0x55d01234 by main+0x31 [leaker]",
                "    1.234567 leaker/4243 malloc(24) failed by main+0x31 [leaker]",
                "    1.234567 leaker/4243 freed 0x55d01234, 24 B of malloc by main+0x31 [leaker]",
                "    1.234567 leaker/4243 freed 0x55d01234, which is not known",
            ]
        );
        assert!(!lines.concat().contains("byte"));
    }

    /// As Python shows what it reads from the trace pipe; frees of unknown blocks are none there.
    #[test]
    fn bcc_of_calls() {
        assert_eq!(
            lines(Format::Bcc),
            [
                "(b'leaker', 4243, 1, b'.....', 98765.4321, b'alloc entered, size = 24')",
                "(b'leaker', 4243, 1, b'.....', 98765.4321, b'alloc exited, size = 24, result = 55d01234')",
                "(b'leaker', 4243, 1, b'.....', 98765.4321, b'alloc exited, size = 24, result = 0')",
                "(b'leaker', 4243, 1, b'.....', 98765.4321, b'free entered, address = 55d01234, size = 24')",
            ]
        );
        let mut odd = call(CallKind::Begins);
        odd.clock = Duration::from_secs(7);
        odd.comm = "it's\t\\\u{e9}".to_owned();
        assert_eq!(
            Format::Bcc.call_line(&odd).as_deref(),
            Some(r#"(b"it's\t\\\xc3\xa9", 4243, 1, b'.....', 7.0, b'alloc entered, size = 24')"#)
        );
        assert_eq!(python_bytes("'\""), r#"b'\'"'"#);
    }

    /// As the kernel's trace pipe has them.
    #[test]
    fn libbpf_of_calls() {
        assert_eq!(
            lines(Format::Libbpf)[1],
            "          leaker-4243    [001] ..... 98765.432100: bpf_trace_printk: alloc exited, size = 24, result = 55d01234"
        );
    }

    /// One object per call, with null for what is not known.
    #[test]
    fn json_of_calls() {
        assert_eq!(
            lines(Format::Json)[4],
            concat!(
                r#"{"schema_version":1,"event":"unknown_free","time_ns":1234567000,"pid":4242,"thread":4243,"comm":"leaker","#,
                r#""cpu":1,"allocator":null,"address":"0x55d01234","bytes":null,"caller":null}"#
            )
        );
        let failed: serde_json::Value = serde_json::from_str(&lines(Format::Json)[2]).expect("it is JSON");
        assert_eq!(
            (&failed["event"], &failed["bytes"]),
            (&"failure".into(), &24.into())
        );
        assert!(failed["address"].is_null());
    }
}
