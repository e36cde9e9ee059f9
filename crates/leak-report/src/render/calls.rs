//! The call trace (`-t`): one line for each allocator call, and whether reports are still made.
//!
//! bcc's memleak prints the lines of the kernel's trace pipe as Python tuples, and no reports; libbpf-tools'
//! leaves its lines in that pipe, where other tools read them, and reports as usual. Here the lines of `bcc`
//! go to standard output, and those of `libbpf`, formatted as in the pipe, to standard error. The pipe's
//! flags are unknown in both.

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
    /// Beginning or outcome of the call.
    pub kind: CallKind,
    /// Time since the attach.
    pub elapsed: Duration,
    /// Time of the call by the kernel's monotonic clock.
    pub clock: Duration,
    /// Process ID.
    pub pid: u32,
    /// Thread ID, in the initial pid namespace.
    pub thread: u32,
    /// Name of the thread.
    pub comm: String,
    /// CPU that the thread ran on.
    pub cpu: u32,
    /// Allocator function; for a free, the one that allocated the block.
    pub allocator: Name,
    /// Address of the block; 0 if the call has none.
    pub address: Avma,
    /// Requested bytes; 0 if the block is unknown.
    pub size: u64,
    /// Caller of the function; `None` if unknown.
    pub caller: Option<Arc<str>>,
}

/// Reports that are made while calls are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// All reports are made as without the call trace.
    Each,
    /// One report is made at the end.
    Last,
    /// No report is made.
    None,
}

/// Properties of a format's call trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFormat {
    /// Events of a call that it contains.
    pub trace: CallTrace,
    /// Reports that are made meanwhile.
    pub reports: Reports,
    /// True if lines go to standard error, which leaves standard output to reports.
    pub to_stderr: bool,
}

type Line = fn(&Call) -> Option<String>;

/// Formats that support the call trace.
const FORMATS: &[(Format, CallFormat, Line)] = &[
    (
        Format::Text,
        CallFormat {
            trace: CallTrace::Ends,
            reports: Reports::Last,
            to_stderr: false,
        },
        |call| Some(text(call)),
    ),
    (
        Format::Json,
        CallFormat {
            trace: CallTrace::Ends,
            reports: Reports::Last,
            to_stderr: false,
        },
        json,
    ),
    (
        Format::Bcc,
        CallFormat {
            trace: CallTrace::All,
            reports: Reports::None,
            to_stderr: false,
        },
        bcc,
    ),
    (
        Format::Libbpf,
        CallFormat {
            trace: CallTrace::All,
            reports: Reports::Each,
            to_stderr: true,
        },
        libbpf,
    ),
];

impl Format {
    /// Properties of the format's call trace; `None` if the format does not support it.
    pub fn call_format(self) -> Option<CallFormat> {
        let mut rows = FORMATS.iter();
        rows.find_map(|&(format, call_format, _)| (format == self).then_some(call_format))
    }

    /// Formats a call as one line; `None` if the format has no line for it.
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

/// The message that the original tools write into the trace pipe; `None` for an unknown free, which they do
/// not trace.
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

/// The pipe's flags (interrupts, preemption), which are unknown here.
const FLAGS: &str = ".....";

fn bcc(call: &Call) -> Option<String> {
    let Call { thread, cpu, .. } = call;
    let (comm, message) = (python_bytes(&call.comm), message(call)?);
    // The pipe has microseconds, and Python omits trailing zeros.
    let time = format!("{:.6}", call.clock.as_secs_f64());
    let time = time.trim_end_matches('0');
    let point = if time.ends_with('.') { "0" } else { "" };
    Some(format!(
        "({comm}, {thread}, {cpu}, b'{FLAGS}', {time}{point}, b'{message}')"
    ))
}

/// Formats text as Python's `repr` does a `bytes` object.
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

    /// Lines for people are as expected, and none contains the word that scripts search for.
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

    /// Lines are the tuples that Python makes of lines from the trace pipe; unknown frees have none.
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

    /// Lines are formatted as in the kernel's trace pipe.
    #[test]
    fn libbpf_of_calls() {
        assert_eq!(
            lines(Format::Libbpf)[1],
            "          leaker-4243    [001] ..... 98765.432100: bpf_trace_printk: alloc exited, size = 24, result = 55d01234"
        );
    }

    /// Each call is one object, with null for unknown values.
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
