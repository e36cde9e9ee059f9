//! Computes growth rates from amounts at several moments. Pure.
//!
//! The rate is the median of the slopes between all pairs of moments (Theil–Sen) in the second half of the
//! trace, so that steady growth counts, and a warm-up, a peak, or a cache that is filled once or emptied now
//! and then does not. A process that was attached to warms up too: memory from before the attach is unknown,
//! and is replaced by known memory.

use std::collections::HashMap;

use leak_report::model::leak::moments::{Moments, Noted, thin};
use leak_report::model::leak::theil_sen::slope;
use leak_report::model::site_name::SiteName;

/// Maximum number of moments kept.
const MAX: usize = 64;
/// Minimum number of moments in the half that counts: with two, either can be an outlier.
pub(super) const MIN: usize = 3;

/// Outstanding bytes of each site and in total, at several moments of a trace.
#[derive(Debug)]
pub(super) struct Trend {
    /// Seconds since the attach, ascending.
    moments: Moments,
    /// Total bytes at each moment.
    total: Vec<f64>,
    /// Bytes of each site at each moment; each list ends with the last moment at which the site had
    /// outstanding memory.
    sites: HashMap<SiteName, Vec<f64>>,
    /// Variance of the total at each moment, in bytes squared.
    variances: Vec<f64>,
    /// True if a mark has set the end of the warm-up.
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

/// A growth rate and its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slope {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Standard error in bytes per second; 0 unless amounts are estimates.
    pub(super) error: f64,
}

impl Trend {
    /// Adds a moment: the bytes of each site, and the variance of their sum.
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
            // The site may have had no outstanding memory at earlier moments.
            values.resize(before, 0.0);
            values.push(bytes);
        }
        self.total.push(total);
        self.variances.push(variance);
    }

    /// Drops the moments before a mark, which ends the warm-up.
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

    /// Index of the first moment that counts: after the mark, or else in the second half of the trace.
    fn first(&self) -> usize {
        let moments = self.moments.seconds();
        let last = moments.last().copied().unwrap_or_default();
        let is_warmup = |moment: &f64| !self.is_warm && *moment < last / 2.0;
        moments.partition_point(is_warmup)
    }

    /// Number of moments that count.
    pub(super) fn moments(&self) -> usize {
        self.moments.seconds().len() - self.first()
    }

    /// Seconds from the first to the last moment that counts.
    pub(super) fn seconds(&self) -> f64 {
        match self.moments.seconds()[self.first()..] {
            [first, .., last] => last - first,
            _ => 0.0,
        }
    }

    /// Growth rate of the total; `None` with fewer than [`MIN`] moments.
    pub(super) fn slope(&self) -> Option<Slope> {
        let rate = self.slope_of(&self.total)?;
        let ends = [self.variances.get(self.first()), self.variances.last()];
        let variance: f64 = ends.into_iter().flatten().sum();
        Some(Slope {
            rate,
            error: variance.sqrt() / self.seconds(),
        })
    }

    /// Growth rate of each site that ever had outstanding memory, in bytes per second.
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
        // A shortcut: most sites do not change.
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

    /// A trend of one site with these outstanding bytes, one second apart.
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

    /// Steady growth counts; single, temporary or early changes do not.
    #[test]
    fn slopes() {
        for (bytes, expected) in [
            (&[][..], None),
            (&[5], None),
            (&[5, 10, 15], None),
            (&[5, 10, 15, 20], Some(5.0)),
            (&[7, 7, 7, 7, 7, 7], Some(0.0)),
            (&[30, 20, 10, 0], Some(-10.0)),
            // Warm-ups, a peak, a drop at the end, and caches that are emptied.
            (&[0, 90, 90, 90, 90, 90], Some(0.0)),
            (&[0, 30, 60, 90, 90, 90, 90, 90], Some(0.0)),
            (&[0, 0, 0, 0, 0, 900, 0, 0], Some(0.0)),
            (&[10, 20, 30, 40, 50, 60, 70, 0], Some(10.0)),
            (&[0, 10, 20, 0, 10, 20, 0, 10, 20, 0, 10, 20], Some(0.0)),
            // A leak throughout, with an outlier.
            (&[0, 10, 20, 30, 40, 500, 60, 70, 80], Some(10.0)),
        ] {
            let (trend, key) = trend(bytes.iter().copied());
            assert_eq!(trend.slope().map(|slope| slope.rate), expected, "{bytes:?}");
            if !bytes.is_empty() {
                assert_eq!(slope_of(&trend, &key), expected, "{bytes:?}");
            }
        }
    }

    /// For any length of trace, a bounded number of moments spread over all of it is kept.
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

    /// A site without a value at a moment had 0 bytes then.
    #[test]
    fn moments_without_a_site_count_as_zero() {
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

    /// A mark discards earlier moments once, and all later ones count; the error combines the variances at
    /// both ends.
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
