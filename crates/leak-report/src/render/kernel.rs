//! Totals of the kernel's own allocators in reports.

use serde::Serialize;

use super::words::{counted, size};
use crate::model::Name;
use crate::model::Report;
use crate::model::{Amount, KernelFacts};

/// Lines of text with the totals, one for each allocator.
pub(super) fn kind_lines(report: &Report) -> Vec<String> {
    let kinds = report.kernel.iter().flat_map(|kernel| &kernel.kinds);
    kinds
        .map(|kind| {
            let note = match kind.holds_others {
                true => {
                    "; they hold blocks that are counted by themselves, and are not among the stacks shown"
                }
                false => "",
            };
            format!(
                "{}: {} in {} outstanding{note}",
                kind.allocator,
                size(kind.outstanding.bytes),
                counted(kind.outstanding.blocks, "block"),
            )
        })
        .collect()
}

/// The kernel and its allocators in JSON.
#[derive(Serialize)]
pub(super) struct KernelJson {
    release: String,
    allocators: Vec<KindJson>,
}

#[derive(Serialize)]
struct KindJson {
    allocator: Name,
    outstanding: TotalJson,
    allocated: TotalJson,
    /// True if its blocks contain those of another allocator, which are counted by themselves.
    holds_others: bool,
}

#[derive(Serialize)]
struct TotalJson {
    bytes: u64,
    blocks: u64,
}

impl From<Amount> for TotalJson {
    fn from(Amount { bytes, blocks }: Amount) -> Self {
        Self { bytes, blocks }
    }
}

impl From<&KernelFacts> for KernelJson {
    fn from(kernel: &KernelFacts) -> Self {
        let kinds = kernel.kinds.iter().map(|kind| KindJson {
            allocator: kind.allocator.clone(),
            outstanding: kind.outstanding.into(),
            allocated: kind.allocated.into(),
            holds_others: kind.holds_others,
        });
        Self {
            release: kernel.release.clone(),
            allocators: kinds.collect(),
        }
    }
}
