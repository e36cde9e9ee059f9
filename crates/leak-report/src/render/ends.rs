//! Meaning and remedy of each end of a stack, in one table.

use std::borrow::Cow;

use unwind_tables::walk::End;

use super::runtimes::runtime;
use crate::model::TargetFacts;

/// Meaning and remedy of an end.
pub struct Explained {
    /// Cause, as a clause.
    pub meaning: &'static str,
    /// Remedy, as a sentence; empty if there is none.
    pub advice: &'static str,
}

/// Remedy for `end` in one of these processes, as a sentence; empty if there is none.
pub fn advice<'a>(end: End, processes: impl IntoIterator<Item = &'a TargetFacts>) -> Cow<'static, str> {
    let general = || explain(end).advice.into();
    if end != End::AnonymousCode {
        return general();
    }
    let mut processes = processes.into_iter();
    processes
        .find_map(|process| runtime_advice(process.exe.as_deref(), &process.comm, process.pid))
        .map_or_else(general, Cow::Owned)
}

/// Advice, in sentences, on how to get stacks through code that a process generates, and names for that code.
/// `None` if its runtime is unknown, or nothing helps.
pub fn runtime_advice(exe: Option<&str>, comm: &str, pid: u32) -> Option<String> {
    let program = exe.and_then(|exe| exe.rsplit('/').next()).unwrap_or(comm);
    let runtime = runtime(program, [])?;
    let switches = [&runtime.frames, &runtime.names].into_iter().flatten();
    let advice: Vec<String> = switches.map(|switch| switch.advice(pid)).collect();
    (!advice.is_empty()).then(|| advice.join(" "))
}

/// Meaning and remedy of `end`.
pub fn explain(end: End) -> Explained {
    let (meaning, advice) = match end {
        End::Complete => ("the outermost frame was reached", ""),
        End::NoMapping => (
            "return address in no executable mapping",
            "The code was loaded just before, and later stacks through it are complete; or the stack is corrupt.",
        ),
        End::AnonymousCode => (
            "code generated at run time, frame pointer not plausible",
            "Make the JIT compiler keep frame pointers, if it has an option for that.",
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
            "more frames than a walk goes through",
            "Usually deep recursion; the frames shown are correct.",
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
            "too many frames were searched for a saved register",
            "Code whose CFA is in a register that no inner frame saves; please report it.",
        ),
        End::BeyondCopy => (
            "finished from a copy of the stack, and the stack is deeper than the copy",
            "Code that had just been mapped was met deeper than the copy (32 KiB to 128 KiB); please report \
             it.",
        ),
        End::NoTable => (
            "code of an object for which there is no unwind table",
            "A warning at the start of the trace says why; `memleak doctor -p PID` does, too.",
        ),
        End::CallersUncertain => (
            "the outermost frame was reached, but callers may be missing before a frame that is marked",
            "Code without CFI may not have set up its own frame pointer; build it with unwind tables or \
             frame pointers.",
        ),
    };
    Explained { meaning, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(comm: &str, exe: Option<&str>) -> TargetFacts {
        TargetFacts {
            pid: 4711,
            instance: 1,
            parent: None,
            comm: comm.to_owned(),
            exe: exe.map(Into::into),
            ended: None,
            lack: None,
            fragmentation: None,
            memory: None,
        }
    }

    /// The remedy names the option of the process's runtime, found by its executable (threads have names of
    /// their own), else by its name; other programs and other ends get the general one.
    #[test]
    fn advice_for_runtimes() {
        for (process, part) in [
            (
                process("java", Some("/usr/lib/jvm/jdk/bin/java")),
                "`jcmd 4711 Compiler.perfmap`",
            ),
            (process("MainThread", Some("/usr/bin/node")), "--perf-basic-prof"),
            (process("java", None), "-XX:+PreserveFramePointer"),
            (
                process("java", Some("/opt/java-wrapper")),
                "Make the JIT compiler",
            ),
        ] {
            let advice = advice(End::AnonymousCode, [&process]);
            assert!(advice.contains(part), "no {part:?} in {advice}");
        }
        let java = process("java", None);
        let several = [&process("sh", None), &java];
        assert!(advice(End::AnonymousCode, several).contains("java"));
        assert_eq!(advice(End::NoCfi, [&java]), explain(End::NoCfi).advice);
        assert_eq!(advice(End::Complete, [&java]), "");
    }
}
