//! Lines of text reports about the verdict: which blocks the process can still reach.

use super::counted;
use super::holders;
use super::words::short_size;
use crate::model::{Amount, FATES, Fate, Hidden, Judgement, Report, StackRef, Unjudged, Verdict};

/// The verdict on some blocks in one line: `8 blocks (320 B) definitely lost, 2 still reachable`; "nothing is
/// lost" if there are no blocks.
pub fn in_words(verdict: &Verdict) -> String {
    in_words_from(verdict, "")
}

/// The verdict on a stack in one line, with the root that holds most of the reachable blocks; `None` without
/// a verdict.
pub fn of_stack(stack: StackRef<'_>) -> Option<String> {
    let verdict = stack.verdict.as_ref()?;
    Some(in_words_from(
        verdict,
        &holders::from(stack.held.as_deref(), stack.report()),
    ))
}

fn in_words_from(verdict: &Verdict, from: &str) -> String {
    let parts: Vec<_> = parts(verdict, from).collect();
    match parts.is_empty() {
        true => "nothing is lost".to_owned(),
        false => parts.join(", "),
    }
}

/// Parts that are not empty. The first has the noun; the first and those that are lost have their size.
fn parts(verdict: &Verdict, from: &str) -> impl Iterator<Item = String> {
    let amounts = FATES.iter().map(|fate| (fate, (fate.of)(verdict)));
    let some = amounts.filter(|(_, amount)| amount.blocks > 0);
    some.enumerate().map(move |(number, (fate, amount))| {
        let Amount { bytes, blocks } = amount;
        let count = match number {
            0 => counted(blocks, "block"),
            _ => blocks.to_string(),
        };
        let from = if fate.field == "reachable" { from } else { "" };
        match number == 0 || is_lost(fate) {
            true => format!("{count} ({}) {}{from}", short_size(bytes), fate.words),
            false => format!("{count} {}{from}", fate.words),
        }
    })
}

fn is_lost(fate: &Fate) -> bool {
    fate.field.ends_with("_lost")
}

/// Lines about the verdict of a report, if it has one.
pub(super) fn lines(report: &Report) -> Vec<String> {
    match (report.verdict(), &report.judgement) {
        (Some(verdict), Some(judgement)) => lines_of(&verdict, judgement),
        (None, _) | (_, None) => Vec::new(),
    }
}

/// Lines about a verdict: the total, how it was made, and reasons to doubt it.
pub fn lines_of(verdict: &Verdict, judgement: &Judgement) -> Vec<String> {
    let mut lines = vec![in_words(verdict), made(judgement)];
    let unjudged = unjudged(judgement);
    if !unjudged.is_empty() {
        lines.push(format!("unknown: {}", unjudged.join(", ")));
    }
    lines.extend(only_inside(judgement));
    let unheld = judgement.unheld.iter().map(|(reason, &count)| {
        let processes = if count == 1 { "process" } else { "processes" };
        format!("holders unknown in {count} {processes}: {}", reason.words())
    });
    lines.extend(unheld);
    lines.extend(doubts(judgement));
    lines.extend(not_seen(judgement));
    lines
}

/// Number of passes, duration, bytes read, and how long threads were stopped.
fn made(judgement: &Judgement) -> String {
    let passes = match judgement.passes {
        1 => "1 pass".to_owned(),
        more => format!("{more} passes"),
    };
    let stopped = match judgement.stopped {
        None => "no threads were stopped".to_owned(),
        Some(time) => format!(
            "threads were stopped for at most {:.1} ms",
            time.as_secs_f64() * 1e3
        ),
    };
    format!(
        "made in {passes} over its memory in {:.1} s ({} read); {stopped}",
        judgement.took.as_secs_f64(),
        short_size(judgement.read)
    )
}

/// Numbers of blocks that could not be judged, with the reason.
fn unjudged(judgement: &Judgement) -> Vec<String> {
    let known = Unjudged::ALL.into_iter();
    let some = known.filter_map(|reason| {
        let blocks = judgement.unjudged.get(&reason)?.blocks;
        (blocks > 0).then(|| format!("{} {}", counted(blocks, "block"), reason.words()))
    });
    some.collect()
}

/// Reachable blocks without a pointer to their start.
fn only_inside(judgement: &Judgement) -> Option<String> {
    let some = judgement.inside.iter().filter(|(_, amount)| amount.blocks > 0);
    let parts: Vec<_> = some
        .map(|(form, amount)| format!("{} {}", amount.blocks, form.words()))
        .collect();
    (!parts.is_empty()).then(|| format!("reachable only by interior pointers: {}", parts.join(", ")))
}

/// Places that could not be looked into.
fn not_seen(judgement: &Judgement) -> Option<String> {
    let known = Hidden::ALL.into_iter();
    let some = known.filter_map(|place| {
        let count = *judgement.hidden.get(&place)?;
        let [one, several] = place.words();
        Some(format!("{count} {}", if count == 1 { one } else { several }))
    });
    let places: Vec<_> = some.collect();
    (!places.is_empty()).then(|| {
        format!(
            "not searched: {}{}; blocks that only these may reach count as unknown",
            places.join(", "),
            words(judgement.hidden_words)
        )
    })
}

fn words(hidden: u64) -> String {
    match hidden {
        0 | u64::MAX => String::new(),
        some => format!(" with {}", counted(some, "word")),
    }
}

/// Reasons why blocks that are called lost may not be.
pub fn doubts(judgement: &Judgement) -> Vec<String> {
    let Amount { bytes, blocks } = judgement.freed_later;
    let freed = (blocks > 0).then(|| {
        let were = if blocks == 1 { "was" } else { "were" };
        format!(
            "{} ({}) that an earlier verdict called lost {were} freed since: that verdict was wrong, and \
             this one may be, too",
            counted(blocks, "block"),
            short_size(bytes)
        )
    });
    let unreadable = (judgement.unreadable > 0).then(|| {
        format!(
            "{} of memory could not be read: blocks that are reachable only from there are called lost",
            short_size(judgement.unreadable)
        )
    });
    freed.into_iter().chain(unreadable).collect()
}
