//! Parser of `/proc/PID/stat`: the few fields that identify a process and show whether it still runs.
//!
//! Pure. Format: `proc_pid_stat(5)`.

/// The fields of the file that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Command name, at most 15 bytes.
    pub comm: String,
    /// State as one letter: `R`, `S`, `D`, `Z`, `X` …
    pub state: u8,
    /// Kernel flags of the task (`PF_…`).
    pub flags: u64,
    /// Page faults of all its threads.
    pub faults: u64,
    /// Number of live threads, including the leader while it is a zombie.
    pub threads: u64,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Lowest address of the program's code; 0 without memory, and while an exec maps a new program. A reader
    /// without permission gets 1 in place of an address.
    pub start_code: u64,
}

/// `PF_KTHREAD` of `include/linux/sched.h`, unchanged since 2.6.28.
const KERNEL_THREAD: u64 = 0x0020_0000;

impl Stat {
    /// Parses the single line of the file; `None` if it does not have the documented form.
    pub fn parse(text: &[u8]) -> Option<Self> {
        // The name may contain blanks and parentheses: it ends at the last one of the line.
        let open = text.iter().position(|&byte| byte == b'(')?;
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Field 3 of the manual page (state) is the first after the name.
        let number = |field: usize| fields.get(field.checked_sub(3)?)?.parse().ok();
        Some(Self {
            comm,
            state: *fields.first()?.as_bytes().first()?,
            flags: number(9)?,
            faults: number(10)?.saturating_add(number(12)?),
            threads: number(20)?,
            start_time: number(22)?,
            start_code: number(26)?,
        })
    }

    /// True if the process ran one program between the reading of `self` and that of `later`, or programs of
    /// one name.
    ///
    /// During an exec, the kernel replaces the memory, to which `/proc/PID/exe` belongs, before the name.
    pub(crate) fn is_same_program(&self, later: &Self) -> bool {
        self.comm == later.comm && later.start_code != 0
    }

    /// True if the task belongs to the kernel and has no memory of its own.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// True if no thread of the process can run again.
    ///
    /// The leader of a process whose other threads still run is a zombie, too, with more than one thread.
    pub fn has_exited(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.state == b'Z' && self.threads <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(comm: &str, state: char, flags: u64, threads: u64) -> Vec<u8> {
        format!("42 ({comm}) {state} 1 42 42 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 {threads} 0 98765 4096 17 18446744073709551615 94 99\n")
            .into_bytes()
    }

    /// Fields are counted from the end of the name, whatever the name contains.
    #[test]
    fn fields() {
        for comm in ["cat", "a b", "x) S 1 (y", ""] {
            let stat = Stat::parse(&line(comm, 'S', 0x40_0000, 3)).expect("a valid line");
            let expected = Stat {
                comm: comm.to_owned(),
                state: b'S',
                flags: 0x40_0000,
                faults: 4,
                threads: 3,
                start_time: 98765,
                start_code: 94,
            };
            assert_eq!(stat, expected);
        }
    }

    /// A zombie leader with other threads alive has not exited; alone it has.
    #[test]
    fn exited() {
        for (state, threads, exited) in [
            ('R', 1, false),
            ('S', 9, false),
            ('T', 1, false),
            ('Z', 1, true),
            ('Z', 2, false),
            ('X', 1, true),
        ] {
            let stat = Stat::parse(&line("a", state, 0, threads)).expect("a valid line");
            assert_eq!(stat.has_exited(), exited, "{state} with {threads} threads");
        }
    }

    /// A process that changed its name meanwhile, or has nothing mapped yet, may run another program.
    #[test]
    fn same_program() {
        let before = Stat::parse(&line("a", 'S', 0, 1)).expect("a valid line");
        assert!(before.is_same_program(&before));
        let renamed = Stat {
            comm: "b".to_owned(),
            ..before.clone()
        };
        let executing = Stat {
            start_code: 0,
            ..before.clone()
        };
        assert!(!before.is_same_program(&renamed) && !before.is_same_program(&executing));
    }

    /// Kernel threads are recognised by their flag.
    #[test]
    fn kernel_thread() {
        assert!(
            Stat::parse(&line("kthreadd", 'S', 0x20_8040, 1))
                .expect("a valid line")
                .is_kernel_thread()
        );
        assert!(
            !Stat::parse(&line("sh", 'S', 0x40_0000, 1))
                .expect("a valid line")
                .is_kernel_thread()
        );
    }

    /// Any other text is rejected.
    #[test]
    fn malformed() {
        for text in [
            "",
            "42",
            "42 (a",
            "42 a) S",
            "42 )a( S 1",
            "42 (a) S 1 2 3",
            "42 (a)",
        ] {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
