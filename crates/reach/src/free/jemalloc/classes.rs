//! Sizes of blocks: 8, multiples of 16 up to 64, then four from each power of two to the next
//! (`include/jemalloc/internal/sc.h`).

/// Number of size classes: more than an address space has room for.
const CLASSES: u64 = 232;

/// Size of a class by its number.
pub(super) fn size(class: u64) -> Option<u64> {
    if class >= CLASSES {
        return None;
    }
    let Some(number) = class.checked_sub(1) else {
        return Some(8);
    };
    let place = number % 4 + 1;
    Some(match number / 4 {
        0 => place * 16,
        group => (64 << (group - 1)) + (place << (3 + group)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as jemalloc's manual lists them.
    #[test]
    fn sizes() {
        let small: Vec<u64> = (0..14).filter_map(size).collect();
        assert_eq!(
            small,
            [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]
        );
        assert_eq!([35, 36, 40].map(size), [Some(14336), Some(16384), Some(32768)]);
        assert_eq!([231, 232, u64::MAX].map(size), [Some(7 << 60), None, None]);
    }
}
