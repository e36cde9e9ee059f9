//! Bounded list of moments, spread evenly over a trace of any length. Pure.

/// List of at most `max` moments. When it is full, every other one is removed, and from then on half as many
/// are kept.
#[derive(Clone, Debug)]
pub struct Moments {
    seconds: Vec<f64>,
    noted: usize,
    stride: usize,
    max: usize,
}

/// Outcome of [`Moments::note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The moment was not kept.
    Skipped,
    /// The moment was appended.
    Kept,
    /// Every other earlier moment was removed, then this one appended; values kept per moment must be thinned
    /// too ([`thin`]).
    KeptAfterThinning,
}

impl Moments {
    /// Creates an empty list; `max` is at least 2.
    pub fn new(max: usize) -> Self {
        Self {
            seconds: Vec::new(),
            noted: 0,
            stride: 1,
            max,
        }
    }

    /// Seconds since the attach, ascending.
    pub fn seconds(&self) -> &[f64] {
        &self.seconds
    }

    /// Adds the next moment unless it is skipped.
    pub fn note(&mut self, seconds: f64) -> Noted {
        let is_kept = self.noted.is_multiple_of(self.stride);
        self.noted += 1;
        if !is_kept {
            return Noted::Skipped;
        }
        let is_full = self.seconds.len() >= self.max;
        if is_full {
            thin(&mut self.seconds);
            self.stride *= 2;
        }
        self.seconds.push(seconds);
        if is_full {
            Noted::KeptAfterThinning
        } else {
            Noted::Kept
        }
    }
}

/// Removes every other value, beginning with the second.
pub fn thin<T>(values: &mut Vec<T>) {
    let mut at = 0;
    values.retain(|_| {
        at += 1;
        at % 2 == 1
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At most `max` moments are kept, the first among them, and the largest gap is at most twice the
    /// smallest.
    #[test]
    fn moments_are_bounded_and_even() {
        let mut moments = Moments::new(8);
        for moment in 0..1000 {
            moments.note(f64::from(moment));
            let kept = moments.seconds();
            assert!(kept.len() <= 8 && kept[0] == 0.0, "{kept:?}");
            let gaps: Vec<_> = kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let [min, max] = [f64::min, f64::max].map(|by| gaps.iter().copied().reduce(by).unwrap_or(1.0));
            assert!(max <= 2.0 * min, "{kept:?}");
        }
        assert!(moments.seconds().len() > 3);
    }
}
