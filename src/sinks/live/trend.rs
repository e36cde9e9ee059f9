//! History of the outstanding memory of each site, and its graph in a line of text.

use std::collections::{HashMap, VecDeque};

use super::sample::Sample;
use leak_report::model::Unit;
use leak_report::model::{Amount, SiteKey};

/// Maximum points kept per site.
pub(super) const POINTS: usize = 120;

/// Levels of a graph, from almost nothing to the maximum.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Amounts outstanding at the sites of the last sample, at each of the last samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Trends {
    /// Number of samples so far.
    samples: usize,
    /// Points by site, newest last; the newest is of the last sample.
    sites: HashMap<SiteKey, VecDeque<Amount>>,
}

impl Trends {
    /// Adds a point for each site of `sample`, and forgets all other sites.
    pub(super) fn take(&mut self, sample: &Sample) {
        self.samples += 1;
        let mut before = std::mem::take(&mut self.sites);
        for site in &sample.sites {
            let mut points = before.remove(&site.key).unwrap_or_default();
            if points.len() == POINTS {
                points.pop_front();
            }
            points.push_back(site.shown);
            self.sites.insert(site.key, points);
        }
    }

    /// Draws the last points of a site in `width` characters, newest last. If points share a character, it
    /// shows the largest.
    pub(super) fn line(&self, site: SiteKey, unit: Unit, width: usize) -> String {
        let Some(points) = self.sites.get(&site).filter(|_| width > 0) else {
            return " ".repeat(width);
        };
        // Cells are aligned to multiples of `per_cell`, so points that share a character keep sharing it as
        // new ones come.
        let per_cell = self.samples.min(POINTS).div_ceil(width).max(1);
        let first = self.samples - points.len();
        let last_cell = (self.samples - 1) / per_cell;
        let mut cells = vec![None::<u64>; width];
        for (number, &point) in (first..).zip(points) {
            let from_end = last_cell - number / per_cell;
            if let Some(cell) = width.checked_sub(1 + from_end).and_then(|at| cells.get_mut(at)) {
                *cell = (*cell).max(Some(unit.of(point)));
            }
        }
        drawn(&cells)
    }
}

/// Draws levels between the minimum and the maximum. The minimum is taken as at most seven eighths of the
/// maximum, so that small changes are not exaggerated.
pub(crate) fn drawn(cells: &[Option<u64>]) -> String {
    let max = cells.iter().flatten().copied().max().unwrap_or_default();
    let min = cells.iter().flatten().copied().min().unwrap_or_default();
    let min = min.min(max - max.div_ceil(8));
    let level = |value: u64| {
        let steps = (LEVELS.len() - 1) as u128;
        let step = u128::from(value.saturating_sub(min)) * steps / u128::from((max - min).max(1));
        let step = usize::try_from(step).unwrap_or_default();
        LEVELS.get(step).copied().unwrap_or(' ')
    };
    let cell = |cell: &Option<u64>| match *cell {
        None | Some(0) => ' ',
        Some(value) => level(value),
    };
    cells.iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::live::tests::sample;

    /// Adds points of one site, one per report.
    fn trends(values: impl IntoIterator<Item = u64>) -> (Trends, SiteKey) {
        let mut trends = Trends::default();
        let mut key = sample(&[("site", 0)]).sites[0].key;
        for bytes in values {
            let sample = sample(&[("site", bytes)]);
            key = sample.sites[0].key;
            trends.take(&sample);
        }
        (trends, key)
    }

    /// Growth rises, a constant is level, small changes are nearly level, and nothing is blank.
    #[test]
    fn shapes() {
        for (values, expected) in [
            (&[][..], "        "),
            (&[5], "       █"),
            (&[0, 0, 0], "        "),
            (&[1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"),
            (&[800, 800, 800], "     ███"),
            (&[990, 1000, 995], "     ▇█▇"),
            (&[u64::MAX, 0, u64::MAX], "     █ █"),
        ] {
            let (trends, key) = trends(values.iter().copied());
            assert_eq!(trends.line(key, Unit::Bytes, 8), expected, "{values:?}");
        }
    }

    /// All points that are kept are shown, however narrow the line, and those that share a character still do
    /// when more come.
    #[test]
    fn long_times() {
        let mut trends = Trends::default();
        let mut seen_at = Vec::new();
        for number in 0..=265 {
            let sample = sample(&[("site", if number == 150 { 100 } else { 20 })]);
            trends.take(&sample);
            let line = trends.line(sample.sites[0].key, Unit::Bytes, 12);
            assert_eq!(line.chars().count(), 12);
            if number >= 160 {
                seen_at.push(line.chars().position(|level| level == '█'));
            }
        }
        assert!(seen_at.iter().all(Option::is_some), "{seen_at:?}");
        assert!(seen_at.windows(2).all(|pair| pair[1] <= pair[0]), "{seen_at:?}");
        assert_eq!(seen_at.windows(2).filter(|pair| pair[1] < pair[0]).count(), 10);
        let other = sample(&[("other", 1)]).sites[0].key;
        assert_eq!(trends.line(other, Unit::Bytes, 3), "   ");
        assert_eq!(trends.line(other, Unit::Bytes, 0), "");
    }

    /// History is bounded in time, and to the sites of the last sample.
    #[test]
    fn bounds() {
        let (mut trends, key) = trends(0..500);
        assert_eq!(trends.sites[&key].len(), POINTS);
        trends.take(&sample(&[("other", 1)]));
        assert!(!trends.sites.contains_key(&key));
        assert_eq!(trends.sites.len(), 1);
    }
}
