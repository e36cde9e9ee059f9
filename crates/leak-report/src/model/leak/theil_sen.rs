//! Theil and Sen's slope of a series, and Mann and Kendall's test of whether it rises. Pure.
//!
//! Both depend on all pairs of points and only on their slopes or their order, so that single outliers have
//! little effect. Theil (1950), Sen (1968, doi:10.1080/01621459.1968.10480934), Mann (1945,
//! doi:10.2307/1907187), Kendall (1938).

use std::cmp::Ordering;

/// Maximum number of points for which the test's distribution is computed exactly; for more it is close to
/// normal.
const MAX_EXACT: usize = 10;

/// Half-width, in standard deviations, of the interval that contains 99 % of a normal distribution.
const DEVIATIONS: f64 = 2.576;

/// Upper bound of the correlation of neighbours, above which a series tells nothing more.
const MAX_LIKENESS: f64 = 0.98;

/// Slope with its 99 % confidence limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Median of the slopes between all pairs of points.
    pub slope: f64,
    /// Negative infinity if there is no limit.
    pub low: f64,
    /// Infinity if there is no limit.
    pub high: f64,
}

impl Interval {
    /// Minimum number of points for limits: with fewer, correlation of neighbours cannot be told from a rise.
    pub const MIN_POINTS: usize = 10;

    /// Computes the slope of a series, and its limits by Sen's method: the slopes of pairs whose ranks differ
    /// from the median's by as much as Kendall's balance varies by chance.
    ///
    /// Kendall's variance is that of independent values. Amounts of memory are not independent: each starts
    /// from the previous one, so a series without any trend can move in one direction for long. The variance
    /// is therefore multiplied by (1 + r) / (1 − r), where r is the correlation of neighbours around the
    /// slope, at least 0, corrected for its bias in short series (Yue and Wang 2004; Kendall 1954). Without
    /// this factor, three quarters of random walks of 60 points would have a certain slope. With it, a tenth
    /// do, and a hundredth of series of independent values.
    pub fn of(points: &[(f64, f64)]) -> Self {
        let is_level = points
            .windows(2)
            .all(|pair| pair[0].1.total_cmp(&pair[1].1).is_eq());
        let mut slopes = match is_level {
            true => Vec::new(),
            false => slopes(points),
        };
        let slope = median(&mut slopes);
        let unlimited = Self {
            slope,
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
        };
        if points.len() < Self::MIN_POINTS {
            return unlimited;
        }
        if slopes.is_empty() {
            return Self {
                low: slope,
                high: slope,
                ..unlimited
            };
        }
        let likeness = likeness_of_neighbours(points, slope);
        let spread = DEVIATIONS * (variance(points.len()) * (1.0 + likeness) / (1.0 - likeness)).sqrt();
        // Ranks equally far from both ends; Gilbert (1987), section 16.5.
        let count = slopes.len();
        let rank = (1..=count / 2).take_while(|&rank| 2.0 * rank as f64 + spread <= count as f64);
        let Some(at) = rank.count().checked_sub(1) else {
            return unlimited;
        };
        let limit = |at, slopes: &mut [f64]| *slopes.select_nth_unstable_by(at, f64::total_cmp).1;
        Self {
            slope,
            low: limit(at, &mut slopes),
            high: limit(count - 1 - at, &mut slopes),
        }
    }
}

/// Correlation of neighbours (0 to below 1) after subtracting `slope`, corrected for the bias of short
/// series.
fn likeness_of_neighbours(points: &[(f64, f64)], slope: f64) -> f64 {
    let count = points.len() as f64;
    let rest: Vec<_> = points.iter().map(|(time, value)| value - slope * time).collect();
    let mean = rest.iter().sum::<f64>() / count;
    let product = |pair: &[f64]| (pair[0] - mean) * (pair[1] - mean);
    let together: f64 = rest.windows(2).map(product).sum();
    let alone: f64 = rest.iter().map(|value| (value - mean).powi(2)).sum();
    // A series exactly on the line varies by rounding only.
    let scale = points.iter().map(|(_, value)| value.abs()).fold(0.0, f64::max);
    if alone <= count * (scale * 1e-9).powi(2) {
        return 0.0;
    }
    let correlation = together / alone;
    ((count * correlation + 2.0) / (count - 4.0)).clamp(0.0, MAX_LIKENESS)
}

/// Variance of the balance of randomly ordered values (Kendall).
fn variance(count: usize) -> f64 {
    let count = count as f64;
    count * (count - 1.0) * (2.0 * count + 5.0) / 18.0
}

/// Median of the slopes between all pairs of points; 0 if no two points differ in time.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    median(&mut slopes(points))
}

/// Slopes between all pairs of points that differ in time.
fn slopes(points: &[(f64, f64)]) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (at, (earlier, from)) in points.iter().enumerate() {
        for (later, to) in &points[at + 1..] {
            let time = later - earlier;
            if time > 0.0 {
                slopes.push((to - from) / time);
            }
        }
    }
    slopes
}

fn median(numbers: &mut [f64]) -> f64 {
    let middle = numbers.len() / 2;
    if numbers.is_empty() {
        return 0.0;
    }
    let compare = |a: &f64, b: &f64| -> Ordering { a.total_cmp(b) };
    let (below, &mut upper, _) = numbers.select_nth_unstable_by(middle, compare);
    match below.iter().copied().max_by(compare) {
        Some(lower) if numbers.len().is_multiple_of(2) => f64::midpoint(lower, upper),
        _ => upper,
    }
}

/// Certainty that `values`, ordered by time, rise: 1 − 2p, not below 0. p is the probability that the balance
/// (rising pairs minus falling ones) of randomly ordered values is at least as high. 0 for two values or
/// fewer.
pub fn certainty_of_rise(values: &[f64]) -> f64 {
    let mut balance = 0_i64;
    for (at, earlier) in values.iter().enumerate() {
        for later in &values[at + 1..] {
            balance += match later.total_cmp(earlier) {
                Ordering::Greater => 1,
                Ordering::Equal => 0,
                Ordering::Less => -1,
            };
        }
    }
    if balance <= 0 {
        return 0.0;
    }
    let chance = if values.len() <= MAX_EXACT {
        exact_chance(values.len(), balance)
    } else {
        normal_chance(values.len(), balance)
    };
    (1.0 - 2.0 * chance).max(0.0)
}

/// Share of all orders of `count` values whose balance (rising pairs minus falling ones) is at least
/// `balance`.
fn exact_chance(count: usize, balance: i64) -> f64 {
    let pairs = count * count.saturating_sub(1) / 2;
    // Number of orders by falling pairs: the k-th value is below 0 to k − 1 of those before it.
    let mut orders = vec![1.0];
    for value in 2..=count {
        let mut next = vec![0.0; orders.len() + value - 1];
        for (falling, ways) in orders.iter().enumerate() {
            for more in &mut next[falling..falling + value] {
                *more += ways;
            }
        }
        orders = next;
    }
    let rises_enough = |falling: usize| (pairs as i64) - 2 * (falling as i64) >= balance;
    let all: f64 = orders.iter().sum();
    let such: f64 = (0..orders.len())
        .filter(|&falling| rises_enough(falling))
        .map(|falling| orders[falling])
        .sum();
    such / all
}

/// Normal approximation of [`exact_chance`] for many values, with Kendall's variance and a continuity
/// correction.
fn normal_chance(count: usize, balance: i64) -> f64 {
    let deviation = (balance as f64 - 1.0) / variance(count).sqrt();
    upper_tail(deviation)
}

/// Probability that a normal variable is at least `deviation` ≥ 0 standard deviations above its mean; error
/// below 10⁻⁷ (Abramowitz and Stegun, 26.2.17).
fn upper_tail(deviation: f64) -> f64 {
    const COEFFICIENTS: [f64; 5] = [
        0.319_381_530,
        -0.356_563_782,
        1.781_477_937,
        -1.821_255_978,
        1.330_274_429,
    ];
    let t = 1.0 / (1.0 + 0.231_641_9 * deviation);
    let polynomial = COEFFICIENTS
        .iter()
        .rev()
        .fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let density = (-deviation * deviation / 2.0).exp() / std::f64::consts::TAU.sqrt();
    density * polynomial
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(amounts: &[f64]) -> Vec<(f64, f64)> {
        (0..).map(f64::from).zip(amounts.iter().copied()).collect()
    }

    /// A constant rise counts; a step, a peak and an empty moment do not.
    #[test]
    fn slopes() {
        for (amounts, expected) in [
            (&[0.0, 10.0, 20.0, 30.0][..], 10.0),
            (&[0.0, 100.0, 100.0, 100.0, 100.0, 100.0], 0.0),
            (&[5.0, 5.0, 900.0, 5.0, 5.0], 0.0),
            (&[30.0, 20.0, 10.0], -10.0),
            (&[0.0, 10.0, 20.0, 0.0, 40.0, 50.0, 60.0], 10.0),
            (&[7.0], 0.0),
            (&[], 0.0),
        ] {
            let found = slope(&points(amounts));
            assert!((found - expected).abs() < 1e-9, "{amounts:?}: {found}");
        }
        assert!(slope(&[(1.0, 0.0), (1.0, 50.0)]).abs() < 1e-9);
    }

    /// Noise by a linear congruential generator, from −1 to below 1.
    fn noise(seed: u64) -> impl Iterator<Item = f64> {
        let next = |state: &u64| {
            let state = state.wrapping_mul(6_364_136_223_846_793_005);
            Some(state.wrapping_add(1_442_695_040_888_963_407))
        };
        let states = std::iter::successors(Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), next);
        states
            .skip(3)
            .map(|state| (state >> 40) as f64 / f64::from(1 << 23) - 1.0)
    }

    /// Limits include the true slope as often as they claim, and exclude 0 for a rise but not for noise, one
    /// step, or too few points.
    #[test]
    fn limits_of_slopes() {
        let rising: Vec<_> = (0..20).map(|at| f64::from(at) * 10.0).collect();
        let exact = Interval::of(&points(&rising));
        assert!(
            (exact.low - 10.0).abs() < 1e-9 && (exact.high - 10.0).abs() < 1e-9,
            "{exact:?}"
        );
        let few = Interval::of(&points(&rising[..Interval::MIN_POINTS - 1]));
        assert!(few.low.is_infinite() && few.high.is_infinite() && (few.slope - 10.0).abs() < 1e-9);
        let level = Interval::of(&points(&[7.0; 20]));
        assert_eq!((level.low, level.slope, level.high), (0.0, 0.0, 0.0));
        for step in 1..59 {
            let stepping: Vec<_> = (0..60).map(|at| if at < step { 0.0 } else { 1e6 }).collect();
            let found = Interval::of(&points(&stepping));
            assert!(found.low <= 0.0, "{step}: {found:?}");
        }
        let (mut includes, mut is_risen, mut is_noise) = (0, 0, 0);
        for seed in 1..=200 {
            let rising = noise(seed)
                .zip(0..)
                .map(|(noise, at)| 2.0 * f64::from(at) + 20.0 * noise);
            let found = Interval::of(&points(&rising.take(40).collect::<Vec<_>>()));
            includes += u32::from(found.low <= 2.0 && 2.0 <= found.high);
            is_risen += u32::from(found.low > 0.0);
            let level: Vec<_> = noise(seed + 1000).take(40).collect();
            let found = Interval::of(&points(&level));
            is_noise += u32::from(found.low <= 0.0 && found.high >= 0.0);
        }
        assert!(
            includes >= 194 && is_risen >= 198 && is_noise >= 194,
            "{includes} {is_risen} {is_noise}"
        );
    }

    /// Random walks (sums of noise) seldom have a certain slope; if neighbours were taken for independent,
    /// most would.
    #[test]
    fn wandering_series() {
        let mut certain = 0;
        for seed in 1..=200 {
            let mut sum = 0.0;
            let walk = noise(seed).map(|noise| {
                sum += noise;
                sum
            });
            let found = Interval::of(&points(&walk.take(60).collect::<Vec<_>>()));
            certain += u32::from(found.low > 0.0 || found.high < 0.0);
        }
        assert!(certain <= 40, "{certain} of 200");
    }

    /// Certainties match hand computation: of the n! orders of n values, one rises throughout; constant or
    /// falling values have certainty 0.
    #[test]
    fn certainties() {
        for (values, expected) in [
            (&[][..], 0.0),
            (&[1.0], 0.0),
            (&[1.0, 2.0], 0.0),
            (&[1.0, 2.0, 3.0], 1.0 - 2.0 / 6.0),
            (&[1.0, 2.0, 3.0, 4.0], 1.0 - 2.0 / 24.0),
            // Three more orders have one falling pair.
            (&[1.0, 2.0, 4.0, 3.0], 1.0 - 2.0 * 4.0 / 24.0),
            (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1.0 - 2.0 / 720.0),
            (&[5.0, 5.0, 5.0, 5.0], 0.0),
            (&[3.0, 2.0, 1.0], 0.0),
            (&[1.0, 3.0, 2.0], 0.0),
        ] {
            let found = certainty_of_rise(values);
            assert!((found - expected).abs() < 1e-12, "{values:?}: {found}");
        }
    }

    /// At the end of the exact distribution, its normal limit is accurate to a few thousandths.
    #[test]
    fn exact_and_normal_agree() {
        for balance in [3, 9, 15, 21, 27] {
            let (exact, normal) = (
                exact_chance(MAX_EXACT, balance),
                normal_chance(MAX_EXACT, balance),
            );
            assert!((exact - normal).abs() < 6e-3, "{balance}: {exact} {normal}");
        }
        let rising: Vec<_> = (0..20).map(f64::from).collect();
        assert!(certainty_of_rise(&rising) > 0.999_999);
        let alternating: Vec<_> = (0..20).map(|at| f64::from(at % 2)).collect();
        assert!(certainty_of_rise(&alternating) < 0.5);
    }
}
