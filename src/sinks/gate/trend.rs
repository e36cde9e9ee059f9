//! How fast something grows, from what it was at several moments. Pure.
//!
//! The slope is the median of the slopes between all pairs of moments (Theil and Sen's) in the second half of the trace: what
//! is steady counts, while a warm-up, a peak, a cache that is filled once or emptied now and then do not. A process that
//! was attached to warms up too: what it held before is not known, and is replaced by what is.

use std::collections::HashMap;

use leak_report::model::leak::moments::{Moments, Noted, thin};
use leak_report::model::leak::theil_sen::slope;
use leak_report::model::site_name::SiteName;

/// Moments that are kept.
const MAX: usize = 64;
/// Fewer moments in the half that counts tell nothing: of two, either can be the exception.
pub(super) const MIN: usize = 3;

/// What sites held, and all of them together, at several moments of a trace.
#[derive(Debug)]
pub(super) struct Trend {
    /// Seconds since the attach, ascending.
    moments: Moments,
    /// Bytes at each moment.
    total: Vec<f64>,
    /// The same by site; of those that came later, only the last moments.
    sites: HashMap<SiteName, Vec<f64>>,
    /// The variance of the total at each moment, in bytes squared.
    variances: Vec<f64>,
    /// Somebody said when the warm-up was over.
    is_warm: bool,
}

impl Default for Trend {
    fn default() -> Self {
        Self {
            moments: Moments::new(MAX),
            total: Vec::new(),
            sites: HashMap::new(),
            variances: Vec::new(),
            is_warm: false,
        }
    }
}

/// A slope and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slope {
    /// In bytes per second.
    pub(super) rate: f64,
    /// How far it can be off where amounts are estimates: a standard error.
    pub(super) error: f64,
}

impl Trend {
    /// Notes a moment: how many bytes each site holds, and the variance of all together.
    pub(super) fn note<'k>(
        &mut self,
        seconds: f64,
        sites: impl Iterator<Item = (&'k SiteName, f64)>,
        variance: f64,
    ) {
        match self.moments.note(seconds) {
            Noted::Skipped => return,
            Noted::Kept => {}
            Noted::KeptAfterThinning => {
                let whole = [&mut self.total, &mut self.variances];
                self.sites.values_mut().chain(whole).for_each(thin);
            }
        }
        let before = self.total.len();
        let mut total = 0.0;
        for (key, bytes) in sites {
            total += bytes;
            let values = match self.sites.get_mut(key) {
                Some(values) => values,
                None => self.sites.entry(key.clone()).or_default(),
            };
            // It may have held nothing for some moments.
            values.resize(before, 0.0);
            values.push(bytes);
        }
        self.total.push(total);
        self.variances.push(variance);
    }

    /// Forgets what was before a moment at which everything was warm.
    pub(super) fn begin_at(&mut self, seconds: f64) {
        if self
            .moments
            .seconds()
            .first()
            .is_some_and(|&first| first < seconds)
        {
            *self = Self::default();
        }
        self.is_warm = true;
    }

    /// The first of the moments that count.
    fn first(&self) -> usize {
        let moments = self.moments.seconds();
        let last = moments.last().copied().unwrap_or_default();
        let is_warmup = |moment: &f64| !self.is_warm && *moment < last / 2.0;
        moments.partition_point(is_warmup)
    }

    /// How many moments count.
    pub(super) fn moments(&self) -> usize {
        self.moments.seconds().len() - self.first()
    }

    /// Seconds between the first of them and the last.
    pub(super) fn seconds(&self) -> f64 {
        match self.moments.seconds()[self.first()..] {
            [first, .., last] => last - first,
            _ => 0.0,
        }
    }

    /// How fast everything together grows; `None` if there are too few moments to tell.
    pub(super) fn slope(&self) -> Option<Slope> {
        let rate = self.slope_of(&self.total)?;
        let ends = [self.variances.get(self.first()), self.variances.last()];
        let variance: f64 = ends.into_iter().flatten().sum();
        Some(Slope {
            rate,
            error: variance.sqrt() / self.seconds(),
        })
    }

    /// The same of each site that ever held something, in bytes per second.
    pub(super) fn slopes(&self) -> impl Iterator<Item = (&SiteName, f64)> {
        let slopes = |(key, values): (_, &Vec<f64>)| Some((key, self.slope_of(values)?));
        self.sites.iter().filter_map(slopes)
    }

    fn slope_of(&self, values: &[f64]) -> Option<f64> {
        if self.moments() < MIN || self.seconds() <= 0.0 {
            return None;
        }
        let moments = self
            .moments
            .seconds()
            .iter()
            .copied()
            .enumerate()
            .skip(self.first());
        let points = moments.map(|(at, moment)| (moment, values.get(at).copied().unwrap_or_default()));
        let points: Vec<(f64, f64)> = points.collect();
        // Most sites hold the same all the time.
        match points.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            true => Some(0.0),
            false => Some(slope(&points)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::site_name::SiteNames;

    /// A trend of one site that holds these bytes, a second after another.
    fn trend(bytes: impl IntoIterator<Item = u32>) -> (Trend, SiteName) {
        let key = SiteNames::default().site(["malloc"].into_iter());
        let mut trend = Trend::default();
        for (second, bytes) in (1..).zip(bytes) {
            trend.note(f64::from(second), [(&key, f64::from(bytes))].into_iter(), 0.0);
        }
        (trend, key)
    }

    fn slope_of(trend: &Trend, site: &SiteName) -> Option<f64> {
        trend
            .slopes()
            .find(|(key, _)| *key == site)
            .map(|(_, slope)| slope)
    }

    /// What is steady is growth; what happens once, or comes and goes, or comes early, is not.
    #[test]
    fn slopes() {
        for (bytes, expected) in [
            (&[][..], None),
            (&[5], None),
            (&[5, 10, 15], None),
            (&[5, 10, 15, 20], Some(5.0)),
            (&[7, 7, 7, 7, 7, 7], Some(0.0)),
            (&[30, 20, 10, 0], Some(-10.0)),
            // Warm-ups, a peak, a drop at the end, caches that are emptied.
            (&[0, 90, 90, 90, 90, 90], Some(0.0)),
            (&[0, 30, 60, 90, 90, 90, 90, 90], Some(0.0)),
            (&[0, 0, 0, 0, 0, 900, 0, 0], Some(0.0)),
            (&[10, 20, 30, 40, 50, 60, 70, 0], Some(10.0)),
            (&[0, 10, 20, 0, 10, 20, 0, 10, 20, 0, 10, 20], Some(0.0)),
            // Leaking through all of it.
            (&[0, 10, 20, 30, 40, 500, 60, 70, 80], Some(10.0)),
        ] {
            let (trend, key) = trend(bytes.iter().copied());
            assert_eq!(trend.slope().map(|slope| slope.rate), expected, "{bytes:?}");
            if !bytes.is_empty() {
                assert_eq!(slope_of(&trend, &key), expected, "{bytes:?}");
            }
        }
    }

    /// However long it goes on, some moments of all of it are kept.
    #[test]
    fn long_traces() {
        let (trend, _) = trend((0..10_000).map(|second| 3 * second));
        let slope = trend.slope().expect("moments enough");
        assert!((slope.rate - 3.0).abs() < 1e-9, "{slope:?}");
        let kept = trend.moments.seconds().len();
        assert!((MAX / 2..=MAX).contains(&kept));
        assert_eq!([trend.total.len(), trend.variances.len()], [kept; 2]);
        assert!(
            (MAX / 4 - 1..=MAX / 2 + 1).contains(&trend.moments()),
            "{}",
            trend.moments()
        );
        assert!(
            (4_000.0..6_000.0).contains(&trend.seconds()),
            "{}",
            trend.seconds()
        );
    }

    /// A site that came later held nothing before, and holds nothing where it is not named.
    #[test]
    fn sites_come_and_go() {
        let mut names = SiteNames::default();
        let (steady, late) = (names.site(["a"].into_iter()), names.site(["b"].into_iter()));
        let mut trend = Trend::default();
        for second in 1..=9 {
            let mut sites = vec![(&steady, 100.0)];
            if second >= 4 && second != 8 {
                sites.push((&late, f64::from(second)));
            }
            trend.note(f64::from(second), sites.into_iter(), 0.0);
        }
        assert_eq!(trend.sites[&late], [0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0, 0.0, 9.0]);
        assert_eq!(slope_of(&trend, &steady), Some(0.0));
        assert_eq!(slope_of(&trend, &late), Some(1.0));
    }

    /// A mark begins anew, once, and all after it counts; an estimate's slope has the error of both its ends.
    #[test]
    fn marks_and_errors() {
        let (mut trend, key) = trend([50, 60, 70, 80]);
        trend.begin_at(1.0);
        assert_eq!(trend.moments(), 4);
        trend.begin_at(4.5);
        assert_eq!((trend.moments(), trend.slope()), (0, None));
        for (second, variance) in [(5.0, 900.0), (6.0, 0.0), (20.0, 1600.0)] {
            trend.begin_at(4.5);
            trend.note(second, [(&key, second)].into_iter(), variance);
        }
        let expected = Slope {
            rate: 1.0,
            error: 50.0 / 15.0,
        };
        assert_eq!(trend.slope(), Some(expected));
    }
}
