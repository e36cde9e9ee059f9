//! Registers of all threads of a process are read without stopping any: values that only they have are found.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memleak::bpf::{Registers, Storage, ThreadState};
use memleak_test::program::{PATIENCE, Program, compile, directory};

/// Value of a thread's first register; the others follow.
const WAITING: u64 = 0x5a5a_0001_dead_bee1;
const SPINNING: u64 = 0x5a5a_0002_dead_bee1;

/// Starts the program. Returns it and its threads by role: id, and place of the alternate stack.
fn holding(test: &str) -> (Program, BTreeMap<String, (u32, u64)>) {
    let path = compile(&directory(test), "processes/holding.c", &["-O1", "-pthread"]);
    memleak_test::program::require_root();
    let program = Program::start(&path, &[]);
    let threads = (0..3).map(|_| {
        let line = program.line();
        let mut words = line.split(' ');
        let mut next = || words.next().expect("three words");
        let (name, tid, place) = (next().to_owned(), next(), next());
        let place = u64::from_str_radix(place, 16).expect("an address");
        (name, (tid.parse().expect("an id"), place))
    });
    let threads = threads.collect();
    (program, threads)
}

/// Reads until `is_found` is true of the thread.
fn read_until(
    registers: &mut Registers<'_>,
    pid: u32,
    tid: u32,
    is_found: impl Fn(&ThreadState) -> bool,
) -> ThreadState {
    let began = Instant::now();
    loop {
        let threads = registers.read(pid).expect("it runs");
        let thread = threads.into_iter().find(|thread| thread.tid == tid);
        let thread = thread.expect("the thread runs");
        if is_found(&thread) {
            return thread;
        }
        assert!(began.elapsed() < *PATIENCE, "{thread:x?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Values in registers are read, of a thread that waits and of one that never enters the kernel by itself,
/// and the alternate stack is found.
#[test]
fn values_in_registers() {
    let (program, threads) = holding("registers-values");
    let pid = program.pid();
    let mut storage = Storage::uninit();
    let mut registers = Registers::open(&mut storage).expect("the kernel takes it");
    // It may still be on its way to its wait, with its registers saved and still on a CPU.
    read_until(&mut registers, pid, threads["waits"].0, |thread| {
        !thread.is_running && (WAITING..WAITING + 5).all(|value| thread.words.contains(&value))
    });
    // Its last entry into the kernel was an interrupt.
    read_until(&mut registers, pid, threads["spins"].0, |thread| {
        thread.words.contains(&SPINNING)
    });
    read_until(&mut registers, pid, threads["spins"].0, |thread| {
        thread.is_running
    });
    let (tid, place) = threads["alternate"];
    let alternate = read_until(&mut registers, pid, tid, |thread| {
        thread.alternate_stack.is_some()
    });
    let stack = alternate.alternate_stack.expect("found");
    assert_eq!((stack.start.get(), stack.end.get()), (place, place + (1 << 16)));
    assert!(alternate.words.contains(&place));
}

/// Every thread is there once, with its stack pointer in writable memory and its thread pointer; no thread of
/// another process is.
#[test]
fn threads_of_the_process() {
    let (program, threads) = holding("registers-threads");
    let pid = program.pid();
    let mut storage = Storage::uninit();
    let mut registers = Registers::open(&mut storage).expect("the kernel takes it");
    let found = registers.read(pid).expect("it runs");
    let mut tids: Vec<u32> = threads.values().map(|&(tid, _)| tid).chain([pid]).collect();
    tids.sort_unstable();
    assert_eq!(found.iter().map(|thread| thread.tid).collect::<Vec<_>>(), tids);
    let maps = std::fs::read(format!("/proc/{pid}/maps")).expect("it runs");
    let maps: Vec<_> = memleak::process::maps::parse(&maps).flatten().collect();
    for thread in found {
        let holds = |address| maps.iter().any(|entry| entry.range.contains(&address));
        assert!(holds(thread.sp), "{thread:x?}");
    }
    drop(program);
    assert!(registers.read(pid).expect("no one").is_empty());
}
