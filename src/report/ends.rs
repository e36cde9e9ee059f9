//! What each end of a stack means, and what can be done about it: one table.

use unwind_tables::walk::End;

/// An end in words.
pub(crate) struct Explained {
    /// What happened, as a clause.
    pub(crate) meaning: &'static str,
    /// What the user can do, as a sentence; empty where nothing can be done.
    pub(crate) advice: &'static str,
}

/// What `end` means.
pub(crate) fn explain(end: End) -> Explained {
    let (meaning, advice) = match end {
        End::Complete => ("the outermost frame was reached", ""),
        End::NoMapping => (
            "return address in no executable mapping",
            "The code was loaded just before, and later stacks through it are complete; or the stack is corrupt.",
        ),
        End::AnonymousCode => (
            "code generated at run time, frame pointer not plausible",
            "Make the JIT compiler keep frame pointers, if it has an option for it.",
        ),
        End::NoCfi => (
            "code without CFI, frame pointer not plausible",
            "Build that code with -fasynchronous-unwind-tables, or assembly with .cfi directives.",
        ),
        End::UnsupportedRule => (
            "CFI that the unwind table cannot express",
            "`memleak table` with the module's path lists its rules; please report it.",
        ),
        End::ReadFault => (
            "stack memory could not be read",
            "The stack may be corrupt, or a page of it swapped out.",
        ),
        End::NoProgress => (
            "the caller's frame would not lie above this one",
            "The stack may be corrupt.",
        ),
        End::DepthLimit => (
            "more frames than a walk may have",
            "Usually deep recursion; the innermost frames are right.",
        ),
        End::TableNotLoaded => (
            "the module's unwind table was not loaded yet",
            "Usual just after the attach and after dlopen; if it stays, the table budget is too small.",
        ),
        End::UretprobeTrampoline => (
            "the return address was replaced by another tool's return probe",
            "End the other tool that traces this process.",
        ),
        End::FpChainEnd => (
            "the frame pointer does not lead to a caller",
            "Use --unwind dwarf, or build everything with -fno-omit-frame-pointer.",
        ),
        End::ScratchBusy => ("not walked: too many walks at once on one CPU", ""),
        End::StackTableFull => (
            "walked, but there was no room to store the stack",
            "Raise --stack-storage-size.",
        ),
        End::KernelUnwinder => ("the kernel's own unwinder went no further", ""),
        End::LookLimit => (
            "registers were looked for in more frames than a walk may look at",
            "Code that keeps its frame in a register which no frame below saves; please report it.",
        ),
    };
    Explained { meaning, advice }
}
