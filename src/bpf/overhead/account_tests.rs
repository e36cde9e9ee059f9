//! Tests of `Account`: windows and counts in, costs out.

use super::*;
use leak_report::model::Spent;

const TRAPS: Traps = Traps {
    emulated: 500.0,
    stepped: Some(15_000.0),
    returning: 250.0,
    empty_program: 20.0,
};

fn runs(count: u64, each: u64) -> Runs {
    Runs {
        count,
        nanoseconds: count * each,
    }
}

/// A window of 10 ms with `pairs` allocations, all seen to return, and as many frees.
fn window(pairs: u64, session: u64, free: u64) -> Window {
    let mut all = AllRuns::default();
    all[ProbeProgram::Session as usize] = runs(2 * pairs, session);
    all[ProbeProgram::Free as usize] = runs(pairs, free);
    Window {
        seconds: 0.01,
        entries: pairs,
        runs: all,
    }
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!(
        (value - expected).abs() <= expected.abs() / 1e9,
        "{value}, not {expected}"
    );
}

/// Entries and frees are extrapolated from the window: entries by their count, frees by time.
#[test]
fn windows_are_extrapolated() {
    let mut account = Account::new(TRAPS);
    account.see(window(1000, 520, 320));
    account.advance(1.0, 100_000);
    let spent = *account.spent();
    near(spent.rate(), 100_000.0);
    let session = spent.programs[ProbeProgram::Session as usize];
    near(session.runs, 200_000.0);
    near(session.per_run(), 500.0);
    near(
        spent.programs[ProbeProgram::Free as usize].nanoseconds,
        100_000.0 * 300.0,
    );
    near(spent.traps, 300_000.0);
    near(spent.trap_nanoseconds, 100_000.0 * (500.0 + 250.0 + 500.0));
    near(spent.share(), 0.1 + 0.03 + 0.125);
    // Twice as many entries in the next second; the rate of frees stays that of the window.
    account.advance(2.0, 300_000);
    let second = account.spent().since(&spent);
    near(second.rate(), 200_000.0);
    near(second.programs[ProbeProgram::Free as usize].runs, 100_000.0);
}

/// Hits of `ret`s are split off from the program that handles returns, with their share of its time.
#[test]
fn hits_of_rets() {
    let total = runs(100, 20);
    for (program, rets, left) in [
        (ProbeProgram::Session, 30, 70),
        (ProbeProgram::Return, 30, 70),
        (ProbeProgram::Return, 120, 0),
    ] {
        let mut window = Window::default();
        window.runs[program as usize] = total;
        window.split_rets(rets);
        let both = [ProbeProgram::Ret, program].map(|program| window.runs[program as usize]);
        assert_eq!(both, [runs(100 - left, 20), runs(left, 20)]);
    }
    let mut idle = Window::default();
    idle.split_rets(1);
    assert_eq!(idle, Window::default());
}

/// Refused returns cost nothing; those seen at a `ret` cost a single step.
#[test]
fn kinds_of_traps() {
    let mut all = AllRuns::default();
    all[ProbeProgram::Session as usize] = runs(100, 20);
    let mut account = Account::new(TRAPS);
    account.see(Window {
        seconds: 0.01,
        entries: 100,
        runs: all,
    });
    account.advance(0.01, 100);
    near(account.spent().traps, 100.0);
    near(account.spent().trap_nanoseconds, 100.0 * 500.0);

    let mut all = AllRuns::default();
    all[ProbeProgram::Entry as usize] = runs(100, 20);
    all[ProbeProgram::Ret as usize] = runs(90, 20);
    all[ProbeProgram::Session as usize] = runs(0, 0);
    let mut account = Account::new(TRAPS);
    account.set_slow(
        SlowShares {
            allocations: 0.5,
            frees: 0.0,
        },
        None,
    );
    account.see(Window {
        seconds: 0.01,
        entries: 100,
        runs: all,
    });
    account.advance(0.01, 100);
    near(
        account.spent().trap_nanoseconds,
        100.0 * (500.0 + 15_000.0) / 2.0 + 90.0 * 15_000.0,
    );
}

/// A window with an interrupted program does not count, nor does the cost of the statistics themselves.
#[test]
fn interrupted_windows() {
    let mut account = Account::new(TRAPS);
    for each in [520, 530, 9000, 510, 520] {
        account.see(window(1000, each, 320));
    }
    account.advance(1.0, 1000);
    near(
        account.spent().programs[ProbeProgram::Session as usize].per_run(),
        500.0,
    );
}

/// Entries before the first window with entries are deferred to it, and are reported as unmeasured until
/// then.
#[test]
fn entries_wait_for_a_window() {
    let mut account = Account::new(TRAPS);
    account.advance(1.0, 10);
    assert_eq!(*account.spent(), Spent::default());
    account.see(window(0, 0, 0));
    account.advance(2.0, 30);
    near(account.spent().unmeasured, 30.0);
    assert!(account.spent().share() == 0.0);
    account.see(window(100, 520, 320));
    account.advance(3.0, 40);
    let spent = account.spent();
    assert!(spent.unmeasured == 0.0);
    near(spent.entries, 40.0);
    near(spent.programs[ProbeProgram::Session as usize].runs, 80.0);
}

/// Windows with very few runs are combined.
#[test]
fn rare_events() {
    let mut account = Account::new(TRAPS);
    for each in [520, 1520] {
        account.see(window(1, each, 20));
    }
    account.advance(10.0, 100);
    let session = account.spent().programs[ProbeProgram::Session as usize];
    near(session.runs, 200.0);
    near(session.per_run(), 1000.0);
}

/// Without statistics, each entry is taken to be a call that returns and whose block is freed.
#[test]
fn assumptions() {
    let mut account = Account::new(TRAPS);
    account.see(Window::assumed(0.25, 250));
    account.advance(0.25, 250);
    near(account.spent().traps, 750.0);
    assert!(account.spent().share() > 0.0);
}
