//! Tags that programs keep in bits of pointers.
//!
//! Tags in the low bits need nothing: a pointer that is off by a few bytes leads to its block all the same.

/// Place of tags in a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Tag {
    /// In the top 8 bits, which some processors ignore (AArch64's TBI, x86-64's LAM).
    Top8,
    /// In the top 16 bits: NaN-boxed values of interpreters, version counters of lock-free lists.
    Top16,
    /// In the low 16 bits, with the pointer above them.
    Low16,
}

impl Tag {
    /// The address that a word with such a tag has.
    fn address(self, word: u64) -> u64 {
        match self {
            Self::Top8 => word & (u64::MAX >> 8),
            Self::Top16 => word & (u64::MAX >> 16),
            Self::Low16 => word >> 16,
        }
    }
}

/// Set of tags that pointers may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tags([Option<Tag>; 3]);

impl Tags {
    /// Returns the set of `tags`.
    pub fn new(tags: &[Tag]) -> Self {
        let all = [Tag::Top8, Tag::Top16, Tag::Low16];
        Self(all.map(|tag| tags.contains(&tag).then_some(tag)))
    }

    /// Addresses that a word can stand for, besides itself.
    pub(super) fn addresses(self, word: u64) -> impl Iterator<Item = u64> {
        let tags = self.0.into_iter().flatten();
        tags.map(move |tag| tag.address(word))
            .filter(move |&address| address != word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each tag is taken off where it is asked for; a word without one stands for itself only.
    #[test]
    fn addresses() {
        let of = |tags: &[Tag], word| Tags::new(tags).addresses(word).collect::<Vec<_>>();
        let address = 0x7f12_3456_7890;
        assert_eq!(of(&[Tag::Top8], 0xa5 << 56 | address), [address]);
        assert_eq!(of(&[Tag::Top16], 0xfff9 << 48 | address), [address]);
        assert_eq!(of(&[Tag::Low16], address << 16 | 7), [address]);
        assert_eq!(of(&[], 0xa5 << 56 | address), [0; 0]);
        assert_eq!(of(&[Tag::Top8, Tag::Top16], address), [0; 0]);
    }
}
