//! Real programs at work, while memleak is started on them, and interrupted or killed at random moments of
//! all its phases, again and again: their output and exit status are the same as without memleak, to the
//! byte. After each end of memleak nothing of it is left: no byte of the program's code is changed, none of
//! memleak's objects is in the kernel, no `libmemleak.so` counts a tracer, and there is no file that was not
//! asked for.
//!
//! `MEMLEAK_CHAOS_ROUNDS` is how often memleak is ended on each program, `MEMLEAK_CHAOS_SEED` seeds the
//! random choices.

mod attack;
mod left_behind;
mod starting;
mod subject;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use attack::{Attack, Outcome, Phase};
use left_behind::Object;
use memleak_test::program::{PATIENCE, directory, require_root};
use memleak_test::random::Random;
use subject::{Run, Subject};

/// Maximum of the random wait from the start of memleak until it is ended, on a machine however busy.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Number of times that memleak is ended on each program.
fn rounds() -> u64 {
    number("MEMLEAK_CHAOS_ROUNDS").unwrap_or(2)
}

fn seed() -> u64 {
    number("MEMLEAK_CHAOS_SEED").unwrap_or(1)
}

#[track_caller]
fn wait_until(context: &str, condition: impl Fn() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(failure) = condition() {
        assert!(began.elapsed() < *PATIENCE, "{context}: {failure}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that nothing of a memleak that has ended is left.
#[track_caller]
fn check_clean(attack: &Attack, outcome: &Outcome, run: &Run, scratch: &Path) {
    let context = format!("seed {}, {attack:?}, {outcome:?}", seed());
    wait_until(&context, || {
        let existing = left_behind::existing();
        let left: Vec<&Object> = outcome.objects.intersection(&existing).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("in the kernel: {left:?}"))
        }
    });
    wait_until(&context, || {
        let tree = left_behind::tree(run.pid);
        let changed = tree.iter().filter(|&&pid| left_behind::changed_code(pid) > 0);
        let stopped = tree.iter().filter(|&&pid| left_behind::is_stopped(pid));
        match (changed.collect::<Vec<_>>(), stopped.collect::<Vec<_>>()) {
            (changed, stopped) if changed.is_empty() && stopped.is_empty() => Ok(()),
            (changed, stopped) => Err(format!("changed code in {changed:?}, stopped: {stopped:?}")),
        }
    });
    wait_until(&context, || match left_behind::listeners(run.pid) {
        None | Some([0, 0, 0, 0]) => Ok(()),
        Some(counts) => Err(format!("still counted by libmemleak.so: {counts:?}")),
    });
    for entry in fs::read_dir(scratch).expect("a directory of ours").flatten() {
        let name = entry.file_name().into_string().expect("UTF-8");
        assert!(attack.files.contains(&name), "{context}: {name} is left");
        fs::remove_file(entry.path()).expect("a file of memleak's");
    }
}

/// Checks that a program's output and exit status are the same as undisturbed.
#[track_caller]
fn check_same(name: &str, disturbed: &subject::End, undisturbed: &subject::End) {
    assert_eq!(disturbed.status, undisturbed.status, "{name}, seed {}", seed());
    let differs = |(first, second): &(&str, &str)| first != second;
    let mut lines = disturbed.output.lines().zip(undisturbed.output.lines());
    if let Some((disturbed, undisturbed)) = lines.find(differs) {
        panic!("{name}, seed {}: {disturbed} instead of {undisturbed}", seed());
    }
    assert_eq!(
        disturbed.output.len(),
        undisturbed.output.len(),
        "{name}, seed {}",
        seed()
    );
}

/// Ends memleak on one program again and again.
#[track_caller]
fn torment(subject: &Subject) {
    require_root();
    let directory = directory(&format!("chaos-{}", subject.name));
    let words = (subject.build)(&directory);
    let scratch = directory.join("scratch");
    fs::create_dir(&scratch).expect("a directory of ours");
    let before = left_behind::orphans();
    // Each program has its own sequence of random numbers.
    let mut random = Random::new(
        seed()
            ^ subject
                .name
                .bytes()
                .fold(0, |sum, byte| sum * 31 + u64::from(byte)),
    );
    let mut phases: BTreeMap<Phase, u64> = BTreeMap::new();
    let mut run = Run::start(&words, &directory.join("disturbed"), 0);
    run.await_allocator();
    let mut longest = LONGEST_WAIT / 4;
    for _ in 0..rounds() {
        let attack = Attack::draw(&mut random, subject, longest);
        let outcome = attack.carry_out(run.pid, &scratch);
        longest = longest.max(outcome.attached_after.unwrap_or_default().min(LONGEST_WAIT));
        *phases.entry(outcome.phase).or_default() += 1;
        run.assert_goes_on(&format!("seed {}, {attack:?}, {outcome:?}", seed()));
        check_clean(&attack, &outcome, &run, &scratch);
    }
    let disturbed = run.stop();
    let done = disturbed
        .output
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        .count();
    let undisturbed = Run::start(&words, &directory.join("undisturbed"), done as u64).end();
    check_same(subject.name, &disturbed, &undisturbed);
    wait_until(subject.name, || {
        let left: Vec<Object> = left_behind::orphans().difference(&before).copied().collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("kernel objects left: {left:?}"))
        }
    });
    let _ = writeln!(
        stderr(),
        "chaos: {}: memleak ended {} times, {phases:?}; {done} rounds as undisturbed; seed {}",
        subject.name,
        rounds(),
        seed()
    );
}

/// Exceptions through many frames, and from operator new.
#[test]
fn exceptions() {
    torment(&subject::EXCEPTIONS);
}

/// redis-server, answering.
#[test]
fn redis() {
    torment(&subject::REDIS);
}

/// Python, with threads and exceptions.
#[test]
fn python() {
    torment(&subject::PYTHON);
}

/// Python with `libmemleak.so`, which announces its allocations to attached tracers.
#[test]
fn announced() {
    torment(&subject::ANNOUNCED);
}

/// A shell and its many children.
#[test]
fn shell() {
    torment(&subject::SHELL);
}

/// Libraries that come and go.
#[test]
fn libraries() {
    torment(&subject::LIBRARIES);
}

/// A program that gets no more memory, and continues.
#[test]
fn scarce_memory() {
    torment(&subject::SCARCE);
}

/// Jumps, signals, threads and children that end in every way.
#[test]
fn ways_out() {
    torment(&subject::WAYS_OUT);
}
