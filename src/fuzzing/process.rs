//! Claims about data that the kernel reports for a process, much of which the process can choose.

use std::os::unix::ffi::OsStrExt;

use super::choices::Choices;
use crate::bpf::Change;
use crate::bpf::code_log::take_changes;
use crate::bpf::collect::{CallEvent, Event, MemoryEvent, parse_memory_event};
use crate::process::maps::{self, MapsEntry, MapsName};
use crate::process::regions::Regions;
use crate::process::{smaps, stat};

/// Each line of `/proc/PID/maps` is an entry or an error, and an entry is unchanged when it is written as by
/// the kernel and parsed again. The same text is parsed as `smaps` and `stat`, too.
pub(super) fn maps(bytes: &[u8]) {
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let entries: Vec<_> = maps::parse(bytes).collect();
    assert_eq!(entries.len(), lines.clone().count());
    for (line, entry) in lines.zip(&entries) {
        let Ok(entry) = entry else {
            continue;
        };
        assert!(entry.range.start < entry.range.end);
        let written = written(entry);
        let second: Vec<_> = maps::parse(&written).collect();
        assert_eq!(second, [Ok(entry.clone())], "{:?}", String::from_utf8_lossy(line));
    }
    let valid = entries.iter().flatten().count();
    assert!(smaps::parse(bytes).len() <= valid);
    if let Some(stat) = stat::Stat::parse(bytes) {
        assert!(stat.comm.len() <= 3 * bytes.len());
        let _ = (stat.has_exited(), stat.is_kernel_thread());
    }
}

/// Formats an entry as the kernel does.
fn written(entry: &MapsEntry) -> Vec<u8> {
    let flag = |is, letter| if is { letter } else { '-' };
    let mut line = format!(
        "{:x}-{:x} {}{}{}{} {:x} {:x}:{:x} {} ",
        entry.range.start.get(),
        entry.range.end.get(),
        flag(entry.readable, 'r'),
        flag(entry.writable, 'w'),
        flag(entry.executable, 'x'),
        if entry.shared { 's' } else { 'p' },
        entry.offset.get(),
        entry.device.0,
        entry.device.1,
        entry.inode,
    )
    .into_bytes();
    match &entry.name {
        MapsName::Anonymous => {}
        MapsName::Special(name) => line.extend(name.as_bytes()),
        MapsName::File { path, deleted } => {
            for &byte in path.as_os_str().as_bytes() {
                match byte {
                    b'\n' => line.extend(br"\012"),
                    byte => line.push(byte),
                }
            }
            line.extend(if *deleted { &b" (deleted)"[..] } else { b"" });
        }
    }
    line
}

/// A record of any length and content is an event, or an unknown one. The same bytes are read as records of
/// the log of code, too.
pub(super) fn events(bytes: &[u8]) {
    logged(bytes);
    let event = Event::parse(bytes);
    let call = CallEvent::parse(bytes);
    let of_memory = parse_memory_event(bytes);
    assert!(bytes.len() >= 16 || event == Event::Unknown);
    assert!(bytes.len() >= 64 || call.is_none());
    assert!(bytes.len() >= 16 || of_memory.is_none());
    assert!(bytes.len() >= 72 || !matches!(of_memory, Some(MemoryEvent::Call(_))));
    let half = |at: usize| {
        bytes
            .get(at..)?
            .first_chunk()
            .map(|&half| u32::from_ne_bytes(half))
    };
    if let Event::UnknownMapping { instance, .. }
    | Event::MappingsChanged { instance }
    | Event::SavesWanted { instance, .. } = event
    {
        assert_eq!(Some(instance), half(4));
    }
    if let Some(call) = call {
        assert_eq!(
            [Some(call.instance), Some(call.process), Some(call.cpu)],
            [28, 32, 44].map(half)
        );
        assert!(!call.comm.contains('\0'));
    }
    match of_memory {
        Some(MemoryEvent::Call(call)) => {
            assert_eq!([Some(call.instance), Some(call.thread)], [0, 4].map(half));
        }
        Some(MemoryEvent::Fault(fault)) => {
            assert_eq!([Some(fault.instance), Some(fault.stack)], [8, 12].map(half));
        }
        Some(MemoryEvent::Take(take)) => {
            assert_eq!([Some(take.instance), Some(take.stack)], [8, 12].map(half));
        }
        None => {}
    }
}

/// Logged changes have a valid process, and a valid range, or a parent other than the process.
fn logged(bytes: &[u8]) {
    let mut rest = bytes;
    let changes: Vec<_> = take_changes(&mut rest).collect();
    let read = bytes.len() - rest.len();
    // Each change takes a header, a trailer, and at least four bytes.
    assert!(changes.len() * 28 <= read);
    for change in changes {
        let is_process = i32::try_from(change.pid).is_ok_and(|pid| pid > 0);
        match change.what {
            Change::Mapped(entry) => {
                assert!(is_process && entry.executable && entry.range.start < entry.range.end);
            }
            Change::Executed => assert!(is_process),
            Change::Forked { parent } => assert!(is_process && parent != change.pid),
            Change::Lost(_) => assert_eq!(change.pid, 0),
        }
    }
}

/// For any calls in any order, mappings do not overlap, and the mapped bytes in the totals are those of the
/// pieces.
pub(super) fn regions(bytes: &[u8]) {
    const CAPACITY: usize = 64;
    let mut choices = Choices(bytes);
    let mut regions = Regions::new(CAPACITY);
    while !choices.0.is_empty() {
        let record: [u8; 72] = record(&mut choices);
        let Some(MemoryEvent::Call(event)) = parse_memory_event(&record) else {
            continue;
        };
        regions.apply(&event);
        let maps: Vec<MapsEntry> = Vec::new();
        match choices.byte() {
            1 => drop(regions.settle(regions.mark(), &maps)),
            2 => regions.enter_existing(&maps, event.time),
            3 => regions.doubt_all(),
            _ => {}
        }
        let mut end = 0;
        let mut bytes = 0;
        for (range, _) in regions.iter() {
            assert!(end <= range.start.get() && range.start < range.end, "{range:?}");
            end = range.end.get();
            bytes += range.end.offset_from(range.start);
        }
        let totals = regions.totals(&maps, |stack| stack == 0);
        let mapped: u64 = totals.values().map(|totals| totals.mapped.bytes).sum();
        assert_eq!(mapped, bytes);
        assert!(
            regions.iter().count() <= 4 * CAPACITY,
            "{}",
            regions.iter().count()
        );
    }
}

/// A record of a call. Addresses are mostly pages of a small space, so that calls affect each other.
fn record(choices: &mut Choices<'_>) -> [u8; 72] {
    let mut record = [0; 72];
    let [choice, thread, call, ended, stack] = choices.take();
    record[4] = thread % 4;
    record[8] = call % 5;
    record[9] = ended & 1;
    record[12] = stack % 8;
    for number in 0..6 {
        let place = 16 + 8 * number;
        let value = match choice >> number & 1 {
            0 => u64::from(choices.byte() % 64) << 12,
            _ => u64::from_le_bytes(choices.take()),
        };
        record[place..place + 8].copy_from_slice(&value.to_ne_bytes());
    }
    if choice >> 6 & 1 == 1 {
        // Small numbers, which are valid flags of `mmap` and of `mremap`.
        record[40..48].copy_from_slice(&u64::from(choices.byte()).to_ne_bytes());
    }
    record
}
