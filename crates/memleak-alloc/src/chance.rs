//! Random numbers, and the two mathematical functions that sampling needs, without a mathematical library.

/// A generator (splitmix64) with one word of state. Every thread has its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generator(pub(crate) u64);

impl Generator {
    /// Mixes the bits of `word` so that near words give unrelated ones.
    pub(crate) fn mix(mut word: u64) -> u64 {
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number above 0 and at most 1, a multiple of 2^-53.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (Self::mix(self.0) >> 11) + 1;
        bits as f64 / (1_u64 << 53) as f64
    }

    /// Returns the number of bytes up to the next chosen one, if one of `distance` bytes is chosen on
    /// average.
    pub(crate) fn gap(&mut self, distance: f64) -> u64 {
        (-ln(self.uniform()) * distance) as u64
    }
}

/// Natural logarithm of a number above 0 that is not subnormal; relative error below 1e-12.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    // x = m 2^e with m from sqrt(1/2) to sqrt(2), and ln m = 2 artanh((m - 1) / (m + 1)).
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & MANTISSA | 1.0_f64.to_bits());
    if m > core::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    let mut odd = 23.0;
    while odd > 0.0 {
        sum = sum * square + 1.0 / odd;
        odd -= 2.0;
    }
    2.0 * s * sum + exponent as f64 * core::f64::consts::LN_2
}

/// Returns 1 - e^-x for x of at least 0; relative error below 1e-12.
pub(crate) fn one_minus_exp(x: f64) -> f64 {
    if x > 40.0 {
        return 1.0;
    }
    // x is halved until the series converges quickly. With q = 1 - e^-y, each halving is undone by 1 - e^-2y
    // = q (2 - q).
    let mut y = x;
    let mut halvings = 0;
    while y > 0.125 {
        y /= 2.0;
        halvings += 1;
    }
    let mut sum = 1.0;
    let mut divisor = 11.0;
    while divisor > 1.0 {
        sum = 1.0 - y / divisor * sum;
        divisor -= 1.0;
    }
    let mut q = y * sum;
    for _ in 0..halvings {
        q *= 2.0 - q;
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_the_library() {
        for step in 1..4000 {
            let x = f64::from(step).powi(3) / 1e9;
            assert!((one_minus_exp(x) / -(-x).exp_m1() - 1.0).abs() < 1e-12, "{x}");
            let u = f64::from(step) / 4000.0;
            assert!((ln(u) - u.ln()).abs() < 1e-12 * u.ln().abs().max(1e-3), "{u}");
        }
        assert_eq!(ln(1.0), 0.0);
        assert!((ln(f64::powi(2.0, -53)) / f64::powi(2.0, -53).ln() - 1.0).abs() < 1e-12);
        assert_eq!(one_minus_exp(0.0), 0.0);
        let tiny = 16.0 / 4_194_304.0;
        assert!((one_minus_exp(tiny) / -f64::exp_m1(-tiny) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn gaps_have_the_distance_as_mean() {
        let mut generator = Generator(7);
        let count = 1_000_000;
        let mut sum = 0;
        for _ in 0..count {
            sum += generator.gap(65_536.0);
        }
        // The standard deviation of the mean is a thousandth; rounding down takes half a byte off each gap.
        let mean = sum as f64 / f64::from(count);
        assert!((mean / 65_536.0 - 1.0).abs() < 0.004, "{mean}");
    }
}
