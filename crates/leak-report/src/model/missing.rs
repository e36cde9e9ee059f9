//! Parts that a trace lacks because the kernel refused their BPF programs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Optional part of a trace, for which separate BPF programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TracePart {
    /// Functions of Python in stacks.
    Python,
    /// Notices of libraries that are loaded and unloaded.
    LoaderHook,
    /// Following children of fork.
    Children,
    /// Notices of processes that come into a cgroup or leave it.
    Cgroups,
    /// Stopping a started program at its end, for a verdict.
    ProgramEnd,
    /// Notes of the memory that blocks were freed from, for verdicts.
    FreeNotes,
    /// Freeing the room of blocks whose process has ended.
    EndedBlocks,
    /// Measurement of the cost of a trap.
    TrapCost,
    /// Kernel objects that are allocated or freed in bulk.
    KernelBulk,
    /// Whole pages of the kernel.
    KernelPages,
    /// Per-CPU memory of the kernel.
    KernelPercpu,
}

impl TracePart {
    /// All parts.
    pub const ALL: [Self; 11] = [
        Self::Python,
        Self::LoaderHook,
        Self::Children,
        Self::Cgroups,
        Self::ProgramEnd,
        Self::FreeNotes,
        Self::EndedBlocks,
        Self::TrapCost,
        Self::KernelBulk,
        Self::KernelPages,
        Self::KernelPercpu,
    ];

    /// Stable name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::LoaderHook => "loader_hook",
            Self::Children => "children",
            Self::Cgroups => "cgroups",
            Self::ProgramEnd => "program_end",
            Self::FreeNotes => "free_notes",
            Self::EndedBlocks => "ended_blocks",
            Self::TrapCost => "trap_cost",
            Self::KernelBulk => "kernel_bulk",
            Self::KernelPages => "kernel_pages",
            Self::KernelPercpu => "kernel_percpu",
        }
    }

    /// Consequence for a trace without it, as a clause.
    pub fn without(self) -> &'static str {
        match self {
            Self::Python => "functions of Python are not in stacks",
            Self::LoaderHook => {
                "libraries that are loaded later are noticed only once a stack leads through their code"
            }
            Self::Children => "children of traced processes are not traced",
            Self::Cgroups => "processes that enter or leave a cgroup are noticed up to a second later",
            Self::ProgramEnd => "there is no verdict at the end of the program",
            Self::FreeNotes => "verdicts do not know which memory belonged to freed blocks",
            Self::EndedBlocks => "blocks of processes that have ended still take room (--max-blocks)",
            Self::TrapCost => "the time of a trap is assumed, not measured",
            Self::KernelBulk => "objects that are freed in bulk, as by kfree_rcu, stay outstanding",
            Self::KernelPages => "whole pages are not traced",
            Self::KernelPercpu => "per-CPU memory is not traced",
        }
    }
}

/// Part that a trace lacks, and the refusal that caused it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Part of the trace.
    pub part: TracePart,
    /// Name of the program that the kernel refused.
    pub program: String,
    /// Reason that the kernel gave, in short.
    pub reason: String,
}

/// Mark of reasons that come from the kernel's verifier.
const BY_VERIFIER: &str = " (verifier, ";

impl Missing {
    /// Returns true if the kernel's verifier refused the program; false if it lacked a right or a feature.
    pub fn is_by_verifier(&self) -> bool {
        self.reason.contains(BY_VERIFIER)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            part,
            program,
            reason,
        } = self;
        write!(
            f,
            "{}: the kernel refused the program {program}: {reason}",
            part.without()
        )
    }
}
