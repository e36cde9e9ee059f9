//! Trend as one JSON object on one line. The types here are the schema; fields are only ever added.

use std::io::{self, Write};

use serde::Serialize;

use super::difference_json::{AmountJson, SiteAmountsJson};
use super::trend::{Course, Point, Trend};
use crate::model::unix_nanoseconds;
use crate::model::{Amount, RegionKind, StackRef};
use crate::render::{FrameJson, LeftOutJson, SCHEMA_VERSION, frames_json, write_json};

/// Writes `trend` with all sites, or with the first `top` and the sum of the others.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn render(trend: &Trend, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let (bytes_per_minute, blocks_per_minute) = trend.total();
    let shown = top.unwrap_or(usize::MAX).min(trend.sites.len());
    let (sites, others) = trend.sites.split_at(shown);
    let sites = sites.iter();
    let json = TrendJson {
        schema_version: SCHEMA_VERSION,
        memleak: env!("CARGO_PKG_VERSION"),
        points: trend.points.iter().map(PointJson::from).collect(),
        slope: SlopeJson {
            bytes_per_minute,
            blocks_per_minute,
        },
        notes: &trend.notes,
        sites: sites
            .filter_map(|site| Some(CourseJson::of(site, trend.stack(site)?)))
            .collect(),
        others: top.map(|_| OthersJson::of(trend, others)),
    };
    write_json(&json, out)?;
    writeln!(out)
}

#[derive(Serialize)]
struct TrendJson<'a> {
    schema_version: u32,
    memleak: &'static str,
    points: Vec<PointJson<'a>>,
    /// Rate of all sites together.
    slope: SlopeJson,
    /// Reasons why points may not be comparable.
    notes: &'a [String],
    sites: Vec<CourseJson<'a>>,
    /// Only with a limit to the number of sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<OthersJson>,
}

/// Sum of the sites that are left out.
#[derive(Serialize)]
struct OthersJson {
    sites: usize,
    /// Outstanding without young blocks, at each point.
    shown: Vec<AmountJson>,
}

impl OthersJson {
    fn of(trend: &Trend, others: &[Course]) -> Self {
        let at = |point: usize| -> Amount {
            let amounts = others
                .iter()
                .filter_map(|course| course.amounts.get(point).copied());
            amounts.sum()
        };
        Self {
            sites: others.len(),
            shown: (0..trend.points.len()).map(|point| at(point).into()).collect(),
        }
    }
}

#[derive(Serialize)]
struct PointJson<'a> {
    name: &'a str,
    /// Nanoseconds since 1970.
    unix_ns: u64,
    minutes: f64,
    held: SiteAmountsJson,
}

#[derive(Serialize)]
struct SlopeJson {
    bytes_per_minute: f64,
    blocks_per_minute: f64,
}

#[derive(Serialize)]
struct CourseJson<'a> {
    allocator: &'a str,
    kind: Option<&'static str>,
    slope: SlopeJson,
    /// Number of points with more bytes than the point before.
    rises: usize,
    /// Outstanding without young blocks, at each point.
    shown: Vec<AmountJson>,
    end: &'static str,
    frames: Vec<FrameJson<'a>>,
    /// Present only if frames were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutJson>,
}

impl<'a> From<&'a Point> for PointJson<'a> {
    fn from(point: &'a Point) -> Self {
        Self {
            name: &point.name,
            unix_ns: unix_nanoseconds(point.read_at),
            minutes: point.minutes,
            held: point.total.into(),
        }
    }
}

impl<'a> CourseJson<'a> {
    fn of(course: &Course, stack: StackRef<'a>) -> Self {
        Self {
            allocator: stack.allocator(),
            kind: stack.kind.map(RegionKind::name),
            slope: SlopeJson {
                bytes_per_minute: course.bytes_per_minute,
                blocks_per_minute: course.blocks_per_minute,
            },
            rises: course.rises(),
            shown: course.amounts.iter().map(|&amount| amount.into()).collect(),
            end: stack.end.name(),
            frames: frames_json(stack),
            left_out: LeftOutJson::of(stack),
        }
    }
}
