//! Difference of two reports as one JSON object on one line. The types here are the schema; fields are only
//! ever added.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::difference::{Comparison, Difference, Side, SiteAmounts, State};
use crate::model::unix_nanoseconds;
use crate::model::{Amount, Estimate, RegionKind, StandardError};
use crate::render::{FrameJson, LeftOutJson, LostJson, SCHEMA_VERSION, frames_json, write_json};

/// Writes `comparison` with all sites. With `top`, writes at most `top` sites that grew, at most `top` that
/// shrank, and the sum of the others.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn render(comparison: &Comparison<'_>, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    write_json(&DifferenceJson::of(comparison, top), out)?;
    writeln!(out)
}

#[derive(Serialize)]
struct DifferenceJson<'a> {
    schema_version: u32,
    memleak: &'static str,
    before: SideJson<'a>,
    after: SideJson<'a>,
    /// Sum over all sites.
    growth: GrowthJson,
    /// Number of sites in each state.
    states: BTreeMap<&'static str, usize>,
    /// Reasons why the reports may not be comparable.
    notes: &'a [String],
    sites: Vec<SiteJson<'a>>,
    /// Only with a limit to the number of sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<OthersJson>,
}

/// Sum of the sites that are left out.
#[derive(Serialize)]
struct OthersJson {
    sites: usize,
    growth: GrowthJson,
}

/// One of the compared reports.
#[derive(Serialize)]
pub(super) struct SideJson<'a> {
    name: &'a str,
    /// Time at which totals were read, since 1970.
    unix_ns: u64,
    time: String,
    duration_ns: u64,
    targets: Vec<TargetJson<'a>>,
    held: SiteAmountsJson,
    /// Numbers of complete stacks and allocations, with the totals.
    complete: CompleteJson,
    lost: LostJson<'a>,
}

#[derive(Serialize)]
struct TargetJson<'a> {
    pid: u32,
    comm: &'a str,
    exe: Option<&'a str>,
}

#[derive(Serialize)]
struct CompleteJson {
    stacks: u64,
    all_stacks: u64,
    allocations: u64,
    all_allocations: u64,
}

#[derive(Serialize)]
struct SiteJson<'a> {
    state: &'static str,
    allocator: &'a str,
    kind: Option<&'static str>,
    growth: GrowthJson,
    before: SiteAmountsJson,
    after: SiteAmountsJson,
    end: &'static str,
    frames: Vec<FrameJson<'a>>,
    /// Present only if frames were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutJson>,
}

/// Net growth of a site, without young blocks.
#[derive(Serialize)]
struct GrowthJson {
    bytes: i128,
    blocks: i128,
    /// Present only if amounts are estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_error_at_most: Option<ErrorJson>,
}

#[derive(Serialize)]
struct ErrorJson {
    bytes: f64,
    blocks: f64,
}

/// Amounts of a site.
#[derive(Serialize)]
pub(super) struct SiteAmountsJson {
    /// Outstanding without young blocks.
    shown: AmountJson,
    outstanding: AmountJson,
    allocated: AmountJson,
    /// Present only if the report has a verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    definitely_lost: Option<AmountJson>,
    /// Present only if the report says what blocks pin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<AmountJson>,
}

#[derive(Serialize)]
pub(super) struct AmountJson {
    bytes: u64,
    blocks: u64,
}

impl From<Amount> for AmountJson {
    fn from(Amount { bytes, blocks }: Amount) -> Self {
        Self { bytes, blocks }
    }
}

impl From<SiteAmounts> for SiteAmountsJson {
    fn from(amounts: SiteAmounts) -> Self {
        let SiteAmounts {
            shown,
            outstanding,
            allocated,
            definitely_lost,
            pinned,
        } = amounts;
        let [shown, outstanding, allocated] =
            [shown, outstanding, allocated].map(|Estimate { amount, .. }| amount.into());
        Self {
            shown,
            outstanding,
            allocated,
            definitely_lost: definitely_lost.map(AmountJson::from),
            pinned: pinned.map(AmountJson::from),
        }
    }
}

impl<'a> DifferenceJson<'a> {
    fn of(comparison: &'a Comparison<'a>, top: Option<usize>) -> Self {
        let (before, after) = comparison.total();
        let is_estimate = comparison.is_estimate();
        let (sites, others) = match top {
            None => (comparison.sites.iter().collect(), None),
            Some(top) => {
                let (sites, others) = first(comparison, top);
                (sites, Some(OthersJson::of(comparison, &others)))
            }
        };
        let states = State::ALL.into_iter();
        Self {
            schema_version: SCHEMA_VERSION,
            memleak: env!("CARGO_PKG_VERSION"),
            before: SideJson::of(&comparison.before, before),
            after: SideJson::of(&comparison.after, after),
            growth: GrowthJson::between(before, after, is_estimate),
            states: states
                .map(|state| (state.name(), comparison.count(state)))
                .collect(),
            notes: &comparison.notes,
            sites: sites
                .into_iter()
                .map(|site| SiteJson::of(site, is_estimate))
                .collect(),
            others,
        }
    }
}

/// Splits the sites into those that text shows and the others. Sites are ranked by growth: the one that
/// shrank most is last.
fn first<'a>(
    comparison: &'a Comparison<'a>,
    top: usize,
) -> (Vec<&'a Difference<'a>>, Vec<&'a Difference<'a>>) {
    let sites: Vec<_> = comparison.sites.iter().collect();
    let count = sites.len();
    let grown = sites.iter().filter(|site| site.rank() > [0; 5]).count().min(top);
    let shrunk = sites.iter().filter(|site| site.rank() < [0; 5]).count().min(top);
    let is_first = |number: usize| number < grown || number >= count - shrunk;
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for (number, site) in sites.into_iter().enumerate() {
        match is_first(number) {
            true => first.push(site),
            false => others.push(site),
        }
    }
    (first, others)
}

impl OthersJson {
    fn of(comparison: &Comparison<'_>, others: &[&Difference<'_>]) -> Self {
        let (before, after) = comparison.sum(others.iter().copied());
        Self {
            sites: others.len(),
            growth: GrowthJson::between(before, after, comparison.is_estimate()),
        }
    }
}

impl<'a> SideJson<'a> {
    pub(super) fn of(side: &'a Side<'_>, amounts: SiteAmounts) -> Self {
        let report = side.report;
        let targets = report.targets.iter();
        let [complete_stacks, stacks] = report.completeness.complete_stacks();
        let [complete_allocations, allocations] = report.completeness.complete_allocations();
        let losses = &report.losses;
        Self {
            name: &side.name,
            unix_ns: unix_nanoseconds(report.read_at),
            time: report.time.to_string(),
            duration_ns: u64::try_from(report.elapsed.as_nanos()).unwrap_or(u64::MAX),
            targets: targets
                .map(|target| TargetJson {
                    pid: target.pid,
                    comm: &target.comm,
                    exe: target.exe.as_deref(),
                })
                .collect(),
            held: amounts.into(),
            complete: CompleteJson {
                stacks: complete_stacks,
                all_stacks: stacks,
                allocations: complete_allocations,
                all_allocations: allocations,
            },
            lost: LostJson(losses),
        }
    }
}

impl<'a> SiteJson<'a> {
    fn of(site: &Difference<'a>, is_estimate: bool) -> Self {
        let stack = site.stack;
        Self {
            state: site.state().name(),
            allocator: stack.allocator(),
            kind: stack.kind.map(RegionKind::name),
            growth: GrowthJson::between(site.before, site.after, is_estimate),
            before: site.before.into(),
            after: site.after.into(),
            end: stack.end.name(),
            frames: frames_json(stack),
            left_out: LeftOutJson::of(stack),
        }
    }
}

impl GrowthJson {
    fn between(before: SiteAmounts, after: SiteAmounts, is_estimate: bool) -> Self {
        let (was, is) = (before.shown, after.shown);
        let net = |is: u64, was: u64| i128::from(is) - i128::from(was);
        let StandardError { bytes, blocks } = (was.spread + is.spread).standard_error();
        Self {
            bytes: net(is.amount.bytes, was.amount.bytes),
            blocks: net(is.amount.blocks, was.amount.blocks),
            standard_error_at_most: is_estimate.then_some(ErrorJson { bytes, blocks }),
        }
    }
}
