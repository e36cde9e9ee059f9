//! Theil and Sen's slope of a series, and Mann and Kendall's test of whether it rises. Pure.
//!
//! Both depend on all pairs of points and only on their slopes or their order, so that single outliers have little effect.
//! Theil (1950), Sen (1968, doi:10.1080/01621459.1968.10480934), Mann (1945, doi:10.2307/1907187), Kendall (1938).

use std::cmp::Ordering;

/// Maximum number of points for which the test's distribution is computed exactly; for more it is close to normal.
const MAX_EXACT: usize = 10;

/// Median of the slopes between all pairs of points; 0 if no two points differ in time.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (at, (earlier, from)) in points.iter().enumerate() {
        for (later, to) in &points[at + 1..] {
            let time = later - earlier;
            if time > 0.0 {
                slopes.push((to - from) / time);
            }
        }
    }
    median(&mut slopes)
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

/// Certainty that `values`, ordered by time, rise: 1 − 2p, not below 0. p is the probability that the balance (rising pairs
/// minus falling ones) of randomly ordered values is at least as high. 0 for two values or fewer.
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

/// Share of all orders of `count` values whose balance (rising pairs minus falling ones) is at least `balance`.
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

/// Normal approximation of [`exact_chance`] for many values, with Kendall's variance and a continuity correction.
fn normal_chance(count: usize, balance: i64) -> f64 {
    let count = count as f64;
    let variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
    let deviation = (balance as f64 - 1.0) / variance.sqrt();
    upper_tail(deviation)
}

/// Probability that a normal variable is at least `deviation` ≥ 0 standard deviations above its mean; error below 10⁻⁷
/// (Abramowitz and Stegun, 26.2.17).
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

    /// Certainties match hand computation: of the n! orders of n values, one rises throughout; constant or falling values
    /// have certainty 0.
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
