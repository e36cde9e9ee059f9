//! Sizes, threads and life spans of blocks in JSON.

use serde::Serialize;

use super::amount::AmountJson;
use crate::model::{Makeup, Report};

/// Facts about the blocks of a stack.
#[derive(Serialize)]
pub(super) struct MakeupJson<'a> {
    sizes: Vec<SizeJson>,
    threads: Vec<ThreadJson<'a>>,
    freed: FreedJson,
}

/// Outstanding blocks of similar size.
#[derive(Serialize)]
struct SizeJson {
    smallest: u64,
    largest: u64,
    #[serde(flatten)]
    amount: AmountJson,
}

/// Outstanding blocks of threads of one name.
#[derive(Serialize)]
struct ThreadJson<'a> {
    /// Null if it is not known.
    name: Option<&'a str>,
    #[serde(flatten)]
    amount: AmountJson,
}

/// Freed blocks by how long they lived.
#[derive(Serialize)]
struct FreedJson {
    temporary: u64,
    by_age: Vec<SpanJson>,
}

#[derive(Serialize)]
struct SpanJson {
    /// Upper bound, exclusive; the lower one is that of the class before. Null for the oldest class.
    up_to_ns: Option<u64>,
    blocks: u64,
}

impl<'a> MakeupJson<'a> {
    pub(super) fn of(makeup: &'a Makeup, report: &'a Report) -> Self {
        let sizes = makeup.sizes.iter().map(|class| SizeJson {
            smallest: class.smallest,
            largest: class.largest,
            amount: class.amount.into(),
        });
        let threads = makeup.threads.iter().map(|thread| ThreadJson {
            name: thread.name.map(|name| report.dictionary.text(name)),
            amount: thread.amount.into(),
        });
        let by_age = makeup.freed.classes().filter(|(_, blocks)| *blocks > 0);
        let by_age = by_age.map(|(bound, blocks)| SpanJson {
            up_to_ns: bound.map(super::recent::nanoseconds),
            blocks,
        });
        Self {
            sizes: sizes.collect(),
            threads: threads.collect(),
            freed: FreedJson {
                temporary: makeup.freed.temporary,
                by_age: by_age.collect(),
            },
        }
    }
}
