//! Makeup of a stack's blocks in words: sizes, threads, and how long freed ones have lived.

use std::fmt::Write;
use std::time::Duration;

use super::recent::in_whole_units;
use super::words::{counted, percent, short_size};
use crate::model::printable::Printable;
use crate::model::{LifeSpans, Makeup, SizeClass, StackRef, TextId};

/// Maximum number of size classes, and of threads, in a line.
const MOST: usize = 3;

/// Lines about the blocks of a stack; empty if nothing is known of them.
pub(super) fn lines(stack: StackRef<'_>) -> Vec<String> {
    let Some(makeup) = stack.get().makeup.as_deref() else {
        return Vec::new();
    };
    let report = stack.report();
    let own = report
        .targets
        .iter()
        .find(|target| target.instance == stack.instance);
    let name = |name| report.dictionary.text(name);
    outstanding(makeup, own.map(|target| &*target.comm), name)
        .into_iter()
        .chain(freed(&makeup.freed))
        .collect()
}

/// Sizes and threads of outstanding blocks. A single thread is not named if it has the name of the process,
/// `own`.
fn outstanding<'a>(makeup: &Makeup, own: Option<&str>, name: impl Fn(TextId) -> &'a str) -> Option<String> {
    let mut line = sizes(&makeup.sizes)?;
    let named = makeup.threads.iter();
    let named: Vec<_> = named
        .map(|thread| (thread.name.map(&name), thread.amount.bytes))
        .collect();
    let is_plain = matches!(named[..], [(only, _)] if only == own);
    if !is_plain && !named.is_empty() {
        let _ = write!(line, ", {}", threads(&named));
    }
    Some(line)
}

fn sizes(classes: &[SizeClass]) -> Option<String> {
    let (first, last) = (classes.first()?, classes.last()?);
    if first.smallest == last.largest {
        return Some(format!("sizes: all {}", short_size(first.smallest)));
    }
    let whole: u64 = classes.iter().map(|class| class.amount.blocks).sum();
    let mut most: Vec<_> = classes.iter().collect();
    most.sort_by_key(|class| std::cmp::Reverse(class.amount.blocks));
    let others = most.len().saturating_sub(MOST);
    most.truncate(MOST);
    most.sort_by_key(|class| class.smallest);
    let parts: Vec<_> = most
        .iter()
        .map(|class| {
            let range = range(class.smallest, class.largest);
            match classes.len() {
                1 => range,
                _ => format!("{range} ({})", percent(class.amount.blocks, whole)),
            }
        })
        .collect();
    let beyond = match others {
        0 => String::new(),
        _ => format!("; in all {}", range(first.smallest, last.largest)),
    };
    Some(format!("sizes: {}{beyond}", parts.join(", ")))
}

fn range(smallest: u64, largest: u64) -> String {
    match smallest == largest {
        true => short_size(smallest),
        false => format!("{} to {}", short_size(smallest), short_size(largest)),
    }
}

/// Threads by outstanding bytes, most first; `None` is an unknown name.
fn threads(threads: &[(Option<&str>, u64)]) -> String {
    let whole: u64 = threads.iter().map(|(_, bytes)| bytes).sum();
    let name =
        |name: Option<&str>| name.map_or_else(|| "unknown".to_owned(), |name| Printable(name).to_string());
    if let [(only, _)] = *threads {
        return format!("by thread {}", name(only));
    }
    let first = threads.iter().take(MOST);
    let mut parts: Vec<_> = first
        .map(|&(thread, bytes)| format!("{} ({})", name(thread), percent(bytes, whole)))
        .collect();
    if let Some(others) = threads.len().checked_sub(MOST).filter(|&others| others > 0) {
        parts.push(counted(others as u64, "other name"));
    }
    format!("by threads {}", parts.join(", "))
}

/// Life spans of freed blocks; `None` if none was freed. Parts that round to nothing are left out.
fn freed(spans: &LifeSpans) -> Option<String> {
    let whole = spans.blocks();
    if whole == 0 {
        return None;
    }
    let is_much = |blocks: u64| u128::from(blocks) * 1000 >= u128::from(whole);
    let temporary = is_much(spans.temporary).then(|| {
        format!(
            "{} before the thread's next allocation",
            percent(spans.temporary, whole)
        )
    });
    let mut after = None;
    let mut parts: Vec<_> = temporary.into_iter().collect();
    for (bound, blocks) in spans.classes() {
        if is_much(blocks) {
            parts.push(format!("{} {}", percent(blocks, whole), age(after, bound)));
        }
        after = bound;
    }
    Some(format!("{} freed: {}", counted(whole, "block"), parts.join(", ")))
}

fn age(after: Option<Duration>, bound: Option<Duration>) -> String {
    match (after, bound) {
        (_, Some(bound)) => format!("within {}", in_whole_units(bound)),
        (after, None) => format!("after {}", in_whole_units(after.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amount, TextKind, ThreadBlocks};

    fn class(smallest: u64, largest: u64, blocks: u64) -> SizeClass {
        let bytes = smallest * blocks;
        SizeClass {
            smallest,
            largest,
            amount: Amount { bytes, blocks },
        }
    }

    #[test]
    fn sizes_in_words() {
        assert_eq!(sizes(&[]), None);
        let line = |classes: &[SizeClass]| sizes(classes).unwrap();
        assert_eq!(line(&[class(4096, 4096, 7)]), "sizes: all 4.0 KiB");
        assert_eq!(line(&[class(16, 31, 2)]), "sizes: 16 B to 31 B");
        let several = [
            class(1, 1, 90),
            class(8, 15, 4),
            class(16, 16, 1),
            class(512, 700, 5),
        ];
        let expected = "sizes: 1 B (90.0%), 8 B to 15 B (4.0%), 512 B to 700 B (5.0%); in all 1 B to 700 B";
        assert_eq!(line(&several), expected);
    }

    #[test]
    fn threads_in_words() {
        assert_eq!(threads(&[(Some("worker"), 1)]), "by thread worker");
        let several = [
            (Some("worker"), 70),
            (Some("a\u{1b}b"), 20),
            (None, 6),
            (Some("app"), 4),
        ];
        let expected = "by threads worker (70.0%), a\\u{1b}b (20.0%), unknown (6.0%), 1 other name";
        assert_eq!(threads(&several), expected);
    }

    /// The only thread of a stack is named if its name is not that of the process.
    #[test]
    fn plain_threads_are_not_named() {
        let id = crate::samples::text_of(TextKind::Thread, "main");
        let amount = Amount { bytes: 8, blocks: 1 };
        let makeup = Makeup {
            sizes: vec![class(8, 8, 1)],
            threads: vec![ThreadBlocks {
                name: Some(id),
                amount,
            }],
            freed: LifeSpans::default(),
        };
        let line = |own| outstanding(&makeup, Some(own), |_| "main").unwrap();
        assert_eq!(line("main"), "sizes: all 8 B");
        assert_eq!(line("app"), "sizes: all 8 B, by thread main");
    }

    #[test]
    fn life_spans() {
        let spans = LifeSpans {
            temporary: 960,
            by_age: [10, 29, 0, 0, 0, 0, 1],
        };
        assert_eq!(
            freed(&spans).as_deref(),
            Some(
                "1000 blocks freed: 96.0% before the thread's next allocation, 1.0% within 100 ms, 2.9% within 1 s, 0.1% \
                 after 1 h"
            )
        );
        assert_eq!(freed(&LifeSpans::default()), None);
    }
}
