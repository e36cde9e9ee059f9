//! The first stacks of a report, and the sum of the others.

use std::collections::HashSet;
use std::ptr;

use serde::Serialize;

use super::amount::AmountJson;
use crate::model::{Report, StackRef};

/// Sum of the stacks that are left out.
#[derive(Serialize)]
pub(super) struct OthersJson {
    stacks: usize,
    outstanding: AmountJson,
    allocated: AmountJson,
}

/// The first `top` stacks in the order of formats for people, followed by those that these formats hide; and
/// the sum of the others.
pub(super) fn first(report: &Report, top: usize) -> (Vec<StackRef<'_>>, OthersJson) {
    let mut stacks = report.ranked();
    let ranked: HashSet<_> = stacks.iter().map(|stack| ptr::from_ref(stack.get())).collect();
    let hidden = report
        .stacks()
        .filter(|stack| !ranked.contains(&ptr::from_ref(stack.get())));
    stacks.extend(hidden);
    let others = stacks.split_off(top.min(stacks.len()));
    let sum = |of: fn(StackRef<'_>) -> crate::model::Estimate| {
        AmountJson::of(report, others.iter().map(|&stack| of(stack)).sum())
    };
    let others = OthersJson {
        stacks: others.len(),
        outstanding: sum(|stack| stack.outstanding),
        allocated: sum(|stack| stack.allocated),
    };
    (stacks, others)
}
