//! The started program where the kernel side stops it: after each exec, until its probes are attached, and
//! where it is about to end, until the last report is made.

use std::time::Instant;

use crate::bpf::Hold;

/// Stops of the started program.
pub(super) struct Stops {
    /// Resumes the program when dropped, which is after the BPF programs that stop it. `None` if no program
    /// was started, or if resuming cannot be guaranteed.
    hold: Option<Hold>,
    /// True once the program was stopped where it is about to end.
    is_at_end: bool,
}

impl Stops {
    pub(super) fn new(hold: Option<Hold>) -> Self {
        Self {
            hold,
            is_at_end: false,
        }
    }

    /// Returns whether a program is stopped at all.
    pub(super) fn any(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns whether process `pid` is stopped after an exec.
    pub(super) fn stop(&self, pid: u32) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.pid() == pid)
    }

    /// Returns whether the program is stopped where it is about to end.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Notes that the program is stopped where it is about to end.
    pub(super) fn note_end(&mut self) {
        tracing::debug!("the program is held at its end");
        self.is_at_end = true;
    }

    /// Resumes the program after an exec, at which it was found stopped when it `began`.
    pub(super) fn go_on(&self, began: Instant) {
        if let Some(hold) = &self.hold {
            hold.go_on();
            tracing::debug!("held for {:.1?} after its exec", began.elapsed());
        }
    }

    /// Resumes the program at the end of the trace if it is stopped: at its end, or by one of the last
    /// events.
    pub(super) fn let_go(&self, is_stopped: bool) {
        if let Some(hold) = self.hold.as_ref().filter(|_| self.is_at_end || is_stopped) {
            hold.go_on();
        }
    }
}
