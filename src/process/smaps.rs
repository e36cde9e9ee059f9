//! `/proc/PID/smaps` as text: what of each mapping is in memory. Pure; a mapping's first line is read by
//! [`maps`].

use super::maps::{self, MapsEntry};

/// What is resident of one mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// The mapping.
    pub entry: MapsEntry,
    /// Its bytes that are in memory.
    pub bytes: u64,
    /// Other processes can have the same memory and see what is written to it.
    pub shared: bool,
    /// It grows down by itself: the stack of the first thread.
    pub grows_down: bool,
    /// Address space that was not paid for (`MAP_NORESERVE`), as glibc's arenas are.
    pub not_reserved: bool,
}

/// Reads the text. Lines that cannot be understood are left out.
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

/// Whether the line is a field of a mapping. Those that are not used are fields too.
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

/// The first line of a mapping starts with an address, which has a dash before any colon.
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

    /// Each mapping has the fields that follow it, and lines that make no sense hide nothing.
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

    /// What the running kernel writes adds up to what it says in sum.
    #[test]
    fn own_smaps() {
        let text = std::fs::read("/proc/self/smaps").expect("own smaps");
        let maps = std::fs::read("/proc/self/maps").expect("own maps");
        let all = parse(&text);
        assert!(all.len().abs_diff(maps::parse(&maps).count()) < 8);
        assert!(all.iter().map(|mapping| mapping.bytes).sum::<u64>() > 1 << 20);
    }
}
