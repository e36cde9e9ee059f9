//! Frames that are kept of a walk: all, if they are at most [`MAX_FRAMES`]; else the innermost and the
//! outermost ones. Mirrors `bpf/walk/kept_frames.h`.

/// Maximum number of frames of one walk.
pub const MAX_DEPTH: usize = 4096;
/// Number of innermost frames that are kept of a stack of more than [`MAX_FRAMES`].
pub const INNERMOST_FRAMES: usize = 256;
/// Number of outermost frames that are kept of a stack of more than [`MAX_FRAMES`].
pub const OUTERMOST_FRAMES: usize = 256;
/// Maximum number of frames that are kept of one walk.
pub const MAX_FRAMES: usize = INNERMOST_FRAMES + OUTERMOST_FRAMES;

/// Frames of a stack that were found and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LeftOut {
    /// Number of frames on their inner side, which are all kept.
    pub after: u32,
    /// Their number.
    pub frames: u32,
}

impl LeftOut {
    /// Frames left out of a walk of `count` frames; `None` if all are kept.
    fn of(count: usize) -> Option<Self> {
        let number = |frames: usize| u32::try_from(frames).unwrap_or(u32::MAX);
        (count > MAX_FRAMES).then(|| Self {
            after: number(INNERMOST_FRAMES),
            frames: number(count - MAX_FRAMES),
        })
    }
}

/// Returns true if the frames that are kept of the first `count` are still there after the walk went on to
/// `reached` frames.
pub(super) fn are_kept(count: usize, reached: usize) -> bool {
    let first = match count > MAX_FRAMES {
        true => count - OUTERMOST_FRAMES,
        false => INNERMOST_FRAMES,
    };
    first >= count || reached <= first + OUTERMOST_FRAMES
}

/// Removes the frames that are not kept.
pub(super) fn keep<T>(frames: &mut Vec<T>) -> Option<LeftOut> {
    let left_out = LeftOut::of(frames.len())?;
    frames.drain(INNERMOST_FRAMES..frames.len() - OUTERMOST_FRAMES);
    Some(left_out)
}

/// Kept frames of a walk of `count` frames, innermost first, from their places on the kernel side, where the
/// outermost ones are in a ring. `None` if `by_place` has too few.
pub fn in_order<T: Copy>(by_place: &[T], count: usize) -> Option<(Vec<T>, Option<LeftOut>)> {
    let mut frames = by_place.get(..count.min(MAX_FRAMES))?.to_vec();
    let left_out = LeftOut::of(count);
    if let Some(outermost) = frames.get_mut(INNERMOST_FRAMES..)
        && left_out.is_some()
    {
        // The frame after the last one has the place of the first one that is kept.
        outermost.rotate_left((count - INNERMOST_FRAMES) % OUTERMOST_FRAMES);
    }
    Some((frames, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of a stack of any depth come out in order, and those left out are in between.
    #[test]
    fn places_are_in_order() {
        for count in [
            0, 1, 255, 256, 257, 511, 512, 513, 514, 600, 767, 768, 769, 4095, 4096,
        ] {
            let mut by_place = vec![0; MAX_FRAMES];
            for number in 0..count {
                let place = match number < INNERMOST_FRAMES {
                    true => number,
                    false => INNERMOST_FRAMES + number % OUTERMOST_FRAMES,
                };
                by_place[place] = number;
            }
            let mut kept: Vec<_> = (0..count).collect();
            let left_out = keep(&mut kept);
            assert_eq!(
                in_order(&by_place, count),
                Some((kept, left_out)),
                "{count} frames"
            );
            let frames = left_out.map(|left_out| (left_out.after, left_out.frames));
            let expected = (count > 512).then(|| (256, u32::try_from(count).expect("small") - 512));
            assert_eq!(frames, expected, "{count} frames");
        }
        assert_eq!(in_order(&[0; 511], 512), None);
        assert_eq!(in_order(&[0; 511], 4000), None);
    }
}
