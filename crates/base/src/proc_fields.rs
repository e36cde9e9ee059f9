//! Files of `/proc` whose lines are a name and a value: `status` of a process (`proc_pid_status(5)`), and
//! `fdinfo` of BPF objects (`proc_pid_fdinfo(5)`).
//!
//! They are bytes, not text: a process can set its name to any bytes, and the kernel cuts it at 15, even
//! within a character. The kernel escapes line ends in names, so that each line is one field.

use std::fs;
use std::io;
use std::path::Path;

/// The lines of one file.
#[derive(Debug, Default)]
pub struct ProcFields(Vec<u8>);

impl ProcFields {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The kernel's error, for example that the process is gone.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        fs::read(path).map(Self)
    }

    /// Reads the status of process or thread `pid`.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn status(pid: u32) -> io::Result<Self> {
        Self::read(format!("/proc/{pid}/status"))
    }

    /// Reads this process's status; it has no fields where `/proc` is not mounted.
    pub fn own_status() -> Self {
        Self::read("/proc/self/status").unwrap_or_default()
    }

    /// The words of the first line of this name, colon left out.
    pub fn words(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        let mut lines = self.0.split(|&byte| byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"));
        let value = value.and_then(|value| str::from_utf8(value).ok());
        value.unwrap_or_default().split_ascii_whitespace()
    }

    /// The first word of a line, as a decimal number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.words(name).next()?.parse().ok()
    }

    /// The first word of a line, as a hexadecimal set of bits.
    pub fn bits(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.words(name).next()?, 16).ok()
    }
}

impl From<&[u8]> for ProcFields {
    fn from(text: &[u8]) -> Self {
        Self(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process's name that is not UTF-8 reads as empty and hides no other line; fields are found by their
    /// whole name only.
    #[test]
    fn field_lines_follow_any_comm() {
        let text = b"Name:\tna\xc3\nUmask:\t0022\nTgid:\t42\nNSpid:\t42\t1\nSigIgn:\t0000000000001001\nVmRSS:\t  512 kB\n";
        let fields = ProcFields::from(&text[..]);
        assert_eq!(fields.number("Tgid"), Some(42));
        assert_eq!(fields.words("NSpid").next_back(), Some("1"));
        assert_eq!(fields.bits("SigIgn"), Some(0x1001));
        assert_eq!(fields.number("VmRSS"), Some(512));
        for (name, words) in [("Name", 0), ("NSpid", 2), ("NS", 0), ("pid", 0), ("", 0)] {
            assert_eq!(fields.words(name).count(), words, "{name}");
        }
        assert_eq!(fields.number("SigQ"), None);
        assert_eq!(ProcFields::from(&b"Tgid:"[..]).number("Tgid"), None);
    }

    /// This process has a status.
    #[test]
    fn own() {
        let pid = u64::from(std::process::id());
        assert_eq!(ProcFields::own_status().number("Tgid"), Some(pid));
        let missing = ProcFields::status(1 << 30).expect_err("beyond PID_MAX_LIMIT");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
