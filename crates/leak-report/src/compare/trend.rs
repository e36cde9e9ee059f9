//! Rates of growth of sites, from their amounts at several points in time.
//!
//! The rate is the median of the slopes between all pairs of points (Theil and Sen), which ignores a single
//! step, such as a cache that is filled once, and a single peak.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::difference::SiteAmounts;
use super::identity::{Builds, MatchedSite};
use super::manner::Manner;
use crate::model::dictionary::Import;
use crate::model::leak::theil_sen::slope;
use crate::model::site_name::SiteNames;
use crate::model::{Amount, StackRef};
use crate::model::{Report, Stack};
use crate::render::{FrameStyle, Screen};

/// Point in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Name given by the user.
    pub name: String,
    /// Time at which the totals were read.
    pub read_at: SystemTime,
    /// Time since the attach.
    pub elapsed: Duration,
    /// Minutes since the first point.
    pub minutes: f64,
    /// Sum over all sites that are possible leaks.
    pub total: SiteAmounts,
}

/// Amounts of a site at each point.
#[derive(Clone, Debug)]
pub struct Course {
    /// One of its stacks, from the last point that has it.
    stack: Stack,
    /// Outstanding without young blocks, by point.
    pub amounts: Vec<Amount>,
    /// Rate of growth in bytes per minute.
    pub bytes_per_minute: f64,
    /// Rate of growth in blocks per minute.
    pub blocks_per_minute: f64,
}

impl Course {
    /// Number of points with more bytes than the point before.
    pub fn rises(&self) -> usize {
        let pairs = self.amounts.windows(2);
        pairs.filter(|pair| pair[0].bytes < pair[1].bytes).count()
    }
}

/// Sites at several points in time.
#[derive(Debug)]
pub struct Trend {
    builds: Builds,
    /// Points in chronological order.
    pub points: Vec<Point>,
    /// Sites, fastest growth first; unsorted and without rates until [`Trend::finish`].
    pub sites: Vec<Course>,
    /// Reasons why points may not be comparable.
    pub notes: Vec<String>,
    /// Subject and settings of the first point.
    manner: Option<Manner>,
    /// Last report without its stacks; its dictionary has everything that `sites` refer to.
    legend: Option<Report>,
    known: HashMap<MatchedSite, usize>,
    names: SiteNames,
}

impl Trend {
    /// Maximum number of points: the work per site grows with their square.
    pub const MAX_POINTS: usize = 64;

    /// Creates a trend without points; `builds` are the builds that all reports have in common.
    pub fn new(builds: Builds) -> Self {
        Self {
            builds,
            points: Vec::new(),
            sites: Vec::new(),
            notes: Vec::new(),
            manner: None,
            legend: None,
            known: HashMap::new(),
            names: SiteNames::default(),
        }
    }

    /// Adds a point, which must be later than the earlier ones.
    pub fn add(&mut self, name: String, report: Report) {
        self.note_manner(&report);
        let mut dictionary = self
            .legend
            .take()
            .map_or_else(Arc::default, |legend| legend.dictionary);
        let mut import = Import::merge(&report.dictionary, &mut dictionary);
        let number = self.points.len();
        let since = self
            .points
            .first()
            .map_or(Duration::ZERO, |first| match self.builds.same_trace() {
                // Wall-clock time can be set back; the time since the attach cannot.
                true => report.elapsed.saturating_sub(first.elapsed),
                false => report.read_at.duration_since(first.read_at).unwrap_or_default(),
            });
        let mut all = SiteAmounts::none_in(&report);
        let mut has_stack = vec![false; self.sites.len()];
        for (stack, matched) in self.builds.sites(&report, &mut self.names) {
            let amounts = SiteAmounts::of(stack);
            all.add(amounts);
            let next = self.sites.len();
            let at = *self.known.entry(matched).or_insert(next);
            if at == next {
                has_stack.push(false);
                self.sites.push(Course {
                    stack: stack.renumbered(&mut import),
                    amounts: Vec::new(),
                    bytes_per_minute: 0.0,
                    blocks_per_minute: 0.0,
                });
            }
            let (site, has_stack) = (&mut self.sites[at], &mut has_stack[at]);
            // Points without the site count as zero.
            site.amounts.resize(number + 1, Amount::default());
            site.amounts[number] = site.amounts[number] + amounts.shown.amount;
            // The first stack of a site in a report is its largest.
            if !std::mem::replace(has_stack, true) {
                site.stack = stack.renumbered(&mut import);
            }
        }
        self.points.push(Point {
            name,
            read_at: report.read_at,
            elapsed: report.elapsed,
            minutes: since.as_secs_f64() / 60.0,
            total: all,
        });
        self.legend = Some(Report {
            stacks: Vec::new(),
            dictionary,
            ..report
        });
    }

    fn note_manner(&mut self, report: &Report) {
        let manner = Manner::of(report);
        if let Some(first) = &self.manner
            && !self.builds.same_trace()
        {
            for note in first.notes(&manner) {
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
        }
        self.manner.get_or_insert(manner);
    }

    /// Stack of a site, with the last report's settings.
    pub(super) fn stack<'a>(&'a self, site: &'a Course) -> Option<StackRef<'a>> {
        Some(self.legend.as_ref()?.stack(&site.stack))
    }

    /// Style of frames, from the last report's settings.
    pub(super) fn style(&self) -> Option<FrameStyle> {
        let legend = self.legend.as_ref()?;
        Some(FrameStyle::new(legend, Screen::default()))
    }

    /// Computes the rates and sorts the sites, after the last point.
    pub fn finish(&mut self) {
        let minutes: Vec<_> = self.points.iter().map(|point| point.minutes).collect();
        for site in &mut self.sites {
            site.amounts.resize(minutes.len(), Amount::default());
            let points = |amount: fn(&Amount) -> u64| {
                let amounts = site.amounts.iter().map(amount).map(real);
                slope(&minutes.iter().copied().zip(amounts).collect::<Vec<_>>())
            };
            let (bytes, blocks) = (points(|amount| amount.bytes), points(|amount| amount.blocks));
            (site.bytes_per_minute, site.blocks_per_minute) = (bytes, blocks);
        }
        self.sites.sort_by(|a, b| {
            let by_slope = b.bytes_per_minute.total_cmp(&a.bytes_per_minute);
            by_slope.then_with(|| last(b).cmp(&last(a)))
        });
    }

    /// Rate of growth of all sites together, in bytes and blocks per minute.
    pub fn total(&self) -> (f64, f64) {
        let of = |amount: fn(&Amount) -> u64| {
            let points = self.points.iter();
            let points = points.map(|point| (point.minutes, real(amount(&point.total.shown.amount))));
            slope(&points.collect::<Vec<_>>())
        };
        (of(|amount| amount.bytes), of(|amount| amount.blocks))
    }
}

fn last(course: &Course) -> u64 {
    course.amounts.last().map_or(0, |amount| amount.bytes)
}

/// Converts to a float with about 15 exact digits.
fn real(number: u64) -> f64 {
    number as f64
}
