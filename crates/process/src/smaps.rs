//! Parser of `/proc/PID/smaps`: the resident memory of each mapping. Pure; a mapping's first line is parsed
//! by [`maps`].

use super::maps::{self, MapsEntry};

/// Resident memory of one mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub entry: MapsEntry,
    /// Resident bytes.
    pub bytes: u64,
    /// Set if other processes can map the same memory and see writes to it.
    pub shared: bool,
    /// Set if the mapping grows down by itself: the stack of the first thread.
    pub grows_down: bool,
    /// Set for address space without reserved memory (`MAP_NORESERVE`), as glibc's arenas are.
    pub not_reserved: bool,
}

/// Parses the text. Lines that cannot be parsed are left out.
///
/// Format: `proc_pid_smaps(5)`; sizes are in units of 1024 bytes.
pub fn parse(text: &[u8]) -> Vec<Resident> {
    let mut mappings: Vec<Resident> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        if let Some(last) = mappings.last_mut()
            && read_field(line, last)
        {
            continue;
        }
        if let Some(Ok(entry)) = maps::parse(line).next() {
            mappings.push(Resident {
                entry,
                bytes: 0,
                shared: false,
                grows_down: false,
                not_reserved: false,
            });
        }
    }
    mappings
}

/// Returns whether the line is a field of a mapping, used here or not.
fn read_field(line: &[u8], mapping: &mut Resident) -> bool {
    let Ok(text) = std::str::from_utf8(line) else {
        return false;
    };
    let Some((name, value)) = text.split_once(':').filter(|(name, _)| is_name(name)) else {
        return false;
    };
    match name {
        "Rss" => {
            let kilobytes = value.trim().strip_suffix("kB").map(str::trim);
            let kilobytes: Option<u64> = kilobytes.and_then(|number| number.parse().ok());
            mapping.bytes = kilobytes.unwrap_or(0).saturating_mul(1024);
        }
        "VmFlags" => {
            let has = |flag| value.split_ascii_whitespace().any(|other| other == flag);
            mapping.shared = has("sh");
            mapping.grows_down = has("gd");
            mapping.not_reserved = has("nr");
        }
        _ => {}
    }
    true
}

/// True for names of fields. The first line of a mapping starts with an address, which has a dash before any
/// colon.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text
            .chars()
            .all(|next| next.is_ascii_alphanumeric() || next == '_')
        || text == "THPeligible"
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
            .map(|mapping| {
                (
                    mapping.bytes / 1024,
                    mapping.shared,
                    mapping.grows_down,
                    mapping.not_reserved,
                )
            })
            .collect();
        assert_eq!(
            read,
            [
                (16, false, false, false),
                (8, false, false, true),
                (4, true, false, false),
                (12, false, true, false)
            ]
        );
    }

    /// The mappings of the running kernel's smaps add up to its own total.
    #[test]
    fn own_smaps() {
        let text = std::fs::read("/proc/self/smaps").expect("own smaps");
        let maps = std::fs::read("/proc/self/maps").expect("own maps");
        let all = parse(&text);
        assert!(all.len().abs_diff(maps::parse(&maps).count()) < 8);
        assert!(all.iter().map(|mapping| mapping.bytes).sum::<u64>() > 1 << 20);
    }
}
