//! Holders of blocks in JSON: chains from a root, what would be lost with a stack, and classes.

use serde::Serialize;

use super::amount::AmountJson;
use super::short::short;
use crate::model::owner::owner;
use crate::model::{Held, Holder, LookedAt, Report, Root, Step, StepStacks, TextId};

/// Holders and classes of the blocks of a stack.
#[derive(Serialize)]
pub(super) struct HeldJson<'a> {
    by: Vec<HolderJson<'a>>,
    others: AmountJson,
    /// Null if unknown.
    retained: Option<AmountJson>,
    classes: Vec<ClassJson<'a>>,
    /// Only if classes were looked for without a verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    looked_at: Option<LookedJson>,
}

#[derive(Serialize)]
struct LookedJson {
    blocks: u64,
    without_class: u64,
    of: u64,
}

impl From<LookedAt> for LookedJson {
    fn from(looked: LookedAt) -> Self {
        Self {
            blocks: looked.blocks,
            without_class: looked.without,
            of: looked.of,
        }
    }
}

#[derive(Serialize)]
struct HolderJson<'a> {
    #[serde(flatten)]
    amount: AmountJson,
    root: RootJson<'a>,
    via: Vec<StepJson<'a>>,
    /// True if further steps are left out.
    cut: bool,
}

#[derive(Serialize)]
struct RootJson<'a> {
    kind: &'static str,
    object: Option<&'a str>,
    section: Option<&'a str>,
    symbol: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol_short: Option<String>,
    offset: u64,
    file: Option<&'a str>,
    line: Option<u32>,
    thread: Option<ThreadJson<'a>>,
}

#[derive(Serialize)]
struct ThreadJson<'a> {
    tid: u32,
    name: &'a str,
}

#[derive(Serialize)]
struct StepJson<'a> {
    /// Number of the site; null if the report does not have the stack.
    site: Option<String>,
    allocator: &'a str,
    /// Name of the responsible function, or its address in its module.
    symbol: Option<String>,
    /// True if the chain leads through several of its blocks.
    repeats: bool,
}

#[derive(Serialize)]
struct ClassJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_short: Option<String>,
    #[serde(flatten)]
    amount: AmountJson,
}

impl<'a> HeldJson<'a> {
    pub(super) fn of(held: &Held, report: &'a Report, stacks: &StepStacks<'a>) -> Self {
        let text = |text: TextId| report.dictionary.text(text);
        let class = held.classes.iter().map(|class| ClassJson {
            name: text(class.name),
            name_short: short(text(class.name)),
            amount: class.amount.into(),
        });
        Self {
            by: held
                .by
                .iter()
                .map(|holder| HolderJson::of(holder, report, stacks))
                .collect(),
            others: held.others.into(),
            retained: held.retained.map(AmountJson::from),
            classes: class.collect(),
            looked_at: held.looked.map(LookedJson::from),
        }
    }
}

impl<'a> HolderJson<'a> {
    fn of(holder: &Holder, report: &'a Report, stacks: &StepStacks<'a>) -> Self {
        let step = |step: &Step| {
            let stack = stacks.get(step);
            StepJson {
                site: stack.map(|stack| stack.site().to_string()),
                allocator: report.dictionary.text(step.allocator),
                symbol: stack.and_then(owner).map(|owner| owner.function.into_owned()),
                repeats: step.repeats,
            }
        };
        Self {
            amount: holder.amount.into(),
            root: RootJson::of(&holder.root, report),
            via: holder.via.iter().map(step).collect(),
            cut: holder.is_cut,
        }
    }
}

impl<'a> RootJson<'a> {
    fn of(root: &Root<TextId>, report: &'a Report) -> Self {
        let Root {
            kind,
            object,
            section,
            symbol,
            offset,
            file,
            line,
            thread,
        } = root.map(|_, &text| report.dictionary.text(text));
        Self {
            kind: kind.name(),
            object,
            section,
            symbol,
            symbol_short: symbol.and_then(short),
            offset,
            file,
            line,
            thread: thread.map(|thread| ThreadJson {
                tid: thread.tid,
                name: thread.name,
            }),
        }
    }
}
