//! The moments of a trace that are remembered: few, and evenly over all of it, however long it goes on. Pure.

/// Moments, of which at most so many are kept: when there are more, every other one is forgotten, and from then on every
/// other one is kept.
#[derive(Clone, Debug)]
pub struct Moments {
    seconds: Vec<f64>,
    noted: usize,
    stride: usize,
    max: usize,
}

/// The fate of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is not kept.
    Skipped,
    /// It is the last of those kept.
    Kept,
    /// It is, and before it every other one was forgotten: what belongs to them must go, too ([`thin`]).
    KeptAfterThinning,
}

impl Moments {
    /// None yet; `max` is at least 2.
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

    /// Notes the next moment.
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

/// Forgets every other value, from the second on.
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

    /// However many there are, at most so many are kept, the first among them, and none is farther from the next than
    /// twice the least distance.
    #[test]
    fn moments_are_bounded_and_even() {
        let mut moments = Moments::new(8);
        for moment in 0..1000 {
            moments.note(f64::from(moment));
            let kept = moments.seconds();
            assert!(kept.len() <= 8 && kept[0] == 0.0, "{kept:?}");
            let gaps: Vec<_> = kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let [least, most] = [f64::min, f64::max].map(|by| gaps.iter().copied().reduce(by).unwrap_or(1.0));
            assert!(most <= 2.0 * least, "{kept:?}");
        }
        assert!(moments.seconds().len() > 3);
    }
}
