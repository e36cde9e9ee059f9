//! Parser of `/proc/PID/smaps`: the memory of each mapping. Pure; a mapping's first line is parsed
//! by [`maps`].

use super::maps::{self, MapsEntry};

/// Memory of one mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub entry: MapsEntry,
    pub amounts: Amounts,
    /// Set if the mapping grows down by itself: the stack of the first thread.
    pub grows_down: bool,
}

/// Memory of mappings, in bytes. Sums saturate: sizes are the traced process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Number of mappings.
    pub mappings: u64,
    /// Address space.
    pub reserved: u64,
    pub resident: u64,
    /// Resident, each page divided by the number of its mappings in all processes.
    pub proportional: u64,
    /// Resident and of no file: `RssAnon` of a process's status.
    pub anonymous: u64,
    /// Resident and written to; of files: not yet written back.
    pub dirty: u64,
    pub swapped: u64,
    /// Resident in transparent huge pages, of anonymous memory.
    pub huge: u64,
    /// In pages of hugetlbfs, which the kernel does not count as resident.
    pub hugetlb: u64,
}

impl Amounts {
    /// Takes the part of `all` that belongs to `count` of `sum` resident pages, `reserved` bytes of address
    /// space, and the mapping itself, if it is still there.
    pub(crate) fn take(&mut self, all: &Self, part: (u64, u64), reserved: u64) -> Self {
        let mut taken = Self {
            mappings: std::mem::take(&mut self.mappings),
            reserved,
            ..Self::default()
        };
        self.reserved = self.reserved.saturating_sub(reserved);
        for (to, from, bytes) in [
            (&mut taken.resident, &mut self.resident, all.resident),
            (&mut taken.proportional, &mut self.proportional, all.proportional),
            (&mut taken.anonymous, &mut self.anonymous, all.anonymous),
            (&mut taken.dirty, &mut self.dirty, all.dirty),
            (&mut taken.swapped, &mut self.swapped, all.swapped),
            (&mut taken.huge, &mut self.huge, all.huge),
            (&mut taken.hugetlb, &mut self.hugetlb, all.hugetlb),
        ] {
            *to = share(bytes, part).min(*from);
            *from -= *to;
        }
        taken
    }

    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.mappings, other.mappings),
            (&mut self.reserved, other.reserved),
            (&mut self.resident, other.resident),
            (&mut self.proportional, other.proportional),
            (&mut self.anonymous, other.anonymous),
            (&mut self.dirty, other.dirty),
            (&mut self.swapped, other.swapped),
            (&mut self.huge, other.huge),
            (&mut self.hugetlb, other.hugetlb),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Amount that a line counts into.
    fn field(&mut self, name: &[u8]) -> Option<&mut u64> {
        match name {
            b"Rss" => Some(&mut self.resident),
            b"Pss" => Some(&mut self.proportional),
            b"Anonymous" => Some(&mut self.anonymous),
            b"Shared_Dirty" | b"Private_Dirty" => Some(&mut self.dirty),
            b"Swap" => Some(&mut self.swapped),
            b"AnonHugePages" => Some(&mut self.huge),
            b"Shared_Hugetlb" | b"Private_Hugetlb" => Some(&mut self.hugetlb),
            _ => None,
        }
    }
}

/// The part of `bytes` that `count` is of `sum`.
pub(crate) fn share(bytes: u64, (count, sum): (u64, u64)) -> u64 {
    let part = u128::from(bytes) * u128::from(count.min(sum)) / u128::from(sum.max(1));
    u64::try_from(part).unwrap_or(bytes)
}

/// Parses the text. Lines that cannot be parsed are left out.
///
/// Format: `proc_pid_smaps(5)`; sizes are in units of 1024 bytes.
pub fn parse(text: &[u8]) -> Vec<Resident> {
    let mut mappings: Vec<Resident> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest.get(..end).unwrap_or_default();
        rest = rest.get(end + 1..).unwrap_or_default();
        if let Some(last) = mappings.last_mut()
            && read_field(line, last)
        {
            continue;
        }
        if let Some(Ok(entry)) = maps::parse(line).next() {
            let amounts = Amounts {
                mappings: 1,
                reserved: entry.range.end.offset_from(entry.range.start),
                ..Amounts::default()
            };
            mappings.push(Resident {
                entry,
                amounts,
                grows_down: false,
            });
        }
    }
    mappings
}

/// Returns whether the line is a field of a mapping, used here or not.
fn read_field(line: &[u8], mapping: &mut Resident) -> bool {
    let Some((name, value)) = split(line) else {
        return false;
    };
    match name {
        b"VmFlags" => {
            let mut flags = value.split(u8::is_ascii_whitespace);
            mapping.grows_down = flags.any(|flag| flag == b"gd");
        }
        name => {
            if let Some(field) = mapping.amounts.field(name) {
                *field = field.saturating_add(bytes(value));
            }
        }
    }
    true
}

/// Parses a size with its unit; 0 if it has another form.
fn bytes(value: &[u8]) -> u64 {
    let kilobytes = value.trim_ascii().strip_suffix(b"kB").map(<[u8]>::trim_ascii);
    let kilobytes = kilobytes.and_then(|number| std::str::from_utf8(number).ok()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

/// Name and value of a field. The first line of a mapping starts with an address, which has a dash before any
/// colon.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at_checked(memchr::memchr(b':', line)?)?;
    let is_letter = |next: &u8| next.is_ascii_alphanumeric() || *next == b'_';
    let is_name = name.first().is_some_and(u8::is_ascii_uppercase) && name.iter().all(is_letter);
    is_name.then(|| (name, value.get(1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                  16 kB
Private_Dirty:        16 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
Rss:                   8 kB
VmFlags: rd wr mr mw me nr sd
7f1000000000-7f1000001000 rw-s 00000000 00:01 7                          /dev/zero (deleted)
Rss:                   4 kB
VmFlags: rd wr sh mr mw me ms sd
not a line
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  12 kB
VmFlags: rd wr mr mw me gd ac
";

    /// The fields after a mapping's first line belong to it, and malformed lines hide nothing.
    #[test]
    fn fields_belong_to_the_mapping_before_them() {
        let all = parse(TEXT.as_bytes());
        let read: Vec<_> = all
            .iter()
            .map(|mapping| (mapping.amounts.resident / 1024, mapping.grows_down))
            .collect();
        assert_eq!(read, [(16, false), (8, false), (4, false), (12, true)]);
    }

    /// Kinds of pages are read, and two lines of one kind are added.
    #[test]
    fn kinds_of_pages() {
        let text = "\
1000-2000 rw-p 00000000 00:00 0
Rss: 100 kB
Pss: 50 kB
Pss_Dirty: 7 kB
Shared_Dirty: 3 kB
Private_Dirty: 4 kB
Anonymous: 90 kB
AnonHugePages: 20 kB
Shared_Hugetlb: 1 kB
Private_Hugetlb: 2 kB
Swap: 8 kB
SwapPss: 9 kB
VmFlags: rd wr
3000-4000 rw-p 00000000 00:00 0
Swap: 18446744073709551615 kB
Anonymous: -1 kB
";
        let all = parse(text.as_bytes());
        let expected = Amounts {
            mappings: 1,
            reserved: 4096,
            resident: 100 << 10,
            proportional: 50 << 10,
            anonymous: 90 << 10,
            dirty: 7 << 10,
            swapped: 8 << 10,
            huge: 20 << 10,
            hugetlb: 3 << 10,
        };
        assert_eq!(all[0].amounts, expected);
        let hostile = Amounts {
            mappings: 1,
            reserved: 4096,
            swapped: u64::MAX,
            ..Amounts::default()
        };
        assert_eq!(all[1].amounts, hostile);
    }

    /// The mappings of the running kernel's smaps add up to its own total.
    #[test]
    fn own_smaps() {
        let text = std::fs::read("/proc/self/smaps").expect("own smaps");
        let maps = std::fs::read("/proc/self/maps").expect("own maps");
        let all = parse(&text);
        assert!(all.len().abs_diff(maps::parse(&maps).count()) < 8);
        assert!(all.iter().map(|mapping| mapping.amounts.resident).sum::<u64>() > 1 << 20);
    }
}
