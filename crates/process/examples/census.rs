//! Prints a census of processes: `census PID…`; or the CPU time of readings: `census --cost PID…`.
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::io;
use std::time::Duration;

use memleak_process::census::quick::{Quick, Rollup};
use memleak_process::census::{Census, Divided, Known};
use memleak_process::smaps;
use nix::time::{ClockId, clock_gettime};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pids = arguments.iter().filter_map(|pid| pid.parse().ok());
    let is_cost = arguments.iter().any(|argument| argument == "--cost");
    for pid in pids {
        match is_cost {
            true => cost(pid)?,
            false => show(pid)?,
        }
    }
    Ok(())
}

/// CPU time of this process.
fn used() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Prints the mean CPU time of each reading.
fn cost(pid: u32) -> io::Result<()> {
    type Reading = (&'static str, u32, fn(u32) -> io::Result<()>);
    let readings: [Reading; 5] = [
        ("sums (status, number of open files)", 200, |pid| {
            Quick::read(pid).map(|_| ())
        }),
        ("smaps_rollup", 20, |pid| Rollup::read(pid).map(|_| ())),
        ("smaps alone", 10, |pid| {
            let text = std::fs::read(format!("/proc/{pid}/smaps"))?;
            smaps::parse(&text);
            Ok(())
        }),
        ("mappings by kind", 10, |pid| {
            Divided::read(pid, &Known::default()).map(|_| ())
        }),
        ("census", 10, |pid| {
            Census::take(pid, &Known::default()).map(|_| ())
        }),
    ];
    for (name, times, read) in readings {
        let before = used()?;
        for _ in 0..times {
            read(pid)?;
        }
        let mean = (used()? - before) / times;
        println!("{pid}: {name}: {:.2} ms", mean.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn show(pid: u32) -> io::Result<()> {
    let census = Census::take(pid, &Known::default())?;
    let kinds = census.by_kind();
    let [resident, by_status] = [kinds.total().resident, census.quick.resident].map(|bytes| bytes >> 10);
    println!("process {pid}: {resident} KiB resident, by status {by_status}");
    println!("  resident   reserved   swapped     huge  count");
    for (kind, amounts) in kinds.iter() {
        let [resident, reserved, swapped, huge] =
            [amounts.resident, amounts.reserved, amounts.swapped, amounts.huge].map(|bytes| bytes >> 10);
        let (count, label) = (amounts.mappings, kind.label());
        println!("{resident:>10} {reserved:>10} {swapped:>9} {huge:>8} {count:>6}  {label}");
    }
    let (huge, sockets) = (&census.huge, &census.sockets);
    println!("  {huge:?}\n  {sockets:?}\n  {:?}", census.cgroup);
    if let Some(files) = &census.descriptors {
        println!(
            "  {:?} of {:?}, {} pipes",
            files.by_kind, files.limit, files.pipes
        );
        println!("  held {:?}", files.held);
    }
    let unexplained = census.unexplained();
    for portion in unexplained
        .iter()
        .take(12)
        .filter(|portion| portion.amounts.resident > 0)
    {
        let (range, resident) = (&portion.range, portion.amounts.resident >> 10);
        println!("  unexplained {:x}-{:x}: {resident} KiB", range.start, range.end);
    }
    Ok(())
}
