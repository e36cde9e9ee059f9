//! How a walk ended, and how each of its frames was found. Numbers are those of `bpf/shared.h`.

/// Cause of a walk's end. Exactly one per walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[repr(u32)]
pub enum End {
    /// The outermost frame was reached: its return address is undefined.
    Complete = 0,
    /// The address is in no executable mapping.
    NoMapping = 1,
    /// Code in anonymous memory (JIT), and the frame pointer is not plausible.
    AnonymousCode = 2,
    /// Code without CFI, and the frame pointer is not plausible.
    NoCfi = 3,
    /// CFI that the table cannot express.
    UnsupportedRule = 4,
    /// Stack memory could not be read.
    ReadFault = 5,
    /// The caller's stack pointer is not above this frame's.
    NoProgress = 6,
    /// The stack has more than [`MAX_DEPTH`](super::MAX_DEPTH) frames.
    DepthLimit = 7,
    /// Code in a mapping whose table is not loaded, or whose entry in the mapping list is stale.
    TableNotLoaded = 8,
    /// The return address was replaced by a return probe, and the original is not known.
    UretprobeTrampoline = 9,
    /// A frame-pointer walk met a frame pointer or return address that is not plausible.
    FpChainEnd = 10,
    /// Not walked: too many walks were preempted on this CPU.
    ScratchBusy = 11,
    /// Walked, but the stack could not be stored.
    StackTableFull = 12,
    /// A kernel stack: the kernel's own unwinder ended.
    KernelUnwinder = 13,
    /// The walk has inspected [`MAX_LOOKS`](super::MAX_LOOKS) frames for saved registers.
    LookLimit = 14,
    /// Finished from a copy of the stack, and the stack is deeper than the copy.
    BeyondCopy = 15,
    /// Code of an object for which no table can be made.
    NoTable = 16,
    /// The outermost frame was reached, but callers may be missing: a frame pointer that was followed may
    /// have been another frame's.
    CallersUncertain = 17,
}

impl End {
    /// Every cause, in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::Complete,
        Self::NoMapping,
        Self::AnonymousCode,
        Self::NoCfi,
        Self::UnsupportedRule,
        Self::ReadFault,
        Self::NoProgress,
        Self::DepthLimit,
        Self::TableNotLoaded,
        Self::UretprobeTrampoline,
        Self::FpChainEnd,
        Self::ScratchBusy,
        Self::StackTableFull,
        Self::KernelUnwinder,
        Self::LookLimit,
        Self::BeyondCopy,
        Self::NoTable,
        Self::CallersUncertain,
    ];

    /// Returns the cause with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The stable name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::NoMapping => "no_mapping",
            Self::AnonymousCode => "anonymous_code",
            Self::NoCfi => "no_cfi",
            Self::UnsupportedRule => "unsupported_rule",
            Self::ReadFault => "read_fault",
            Self::NoProgress => "no_progress",
            Self::DepthLimit => "depth_limit",
            Self::TableNotLoaded => "table_not_loaded",
            Self::UretprobeTrampoline => "uretprobe_trampoline",
            Self::FpChainEnd => "fp_chain_end",
            Self::ScratchBusy => "scratch_busy",
            Self::StackTableFull => "stack_table_full",
            Self::KernelUnwinder => "kernel_unwinder",
            Self::LookLimit => "look_limit",
            Self::BeyondCopy => "beyond_copy",
            Self::NoTable => "no_table",
            Self::CallersUncertain => "callers_uncertain",
        }
    }
}

/// Ways in which a frame was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[repr(u32)]
pub enum FoundBy {
    /// By the registers at the probe.
    Probe = 0,
    /// By the CFI of the frame below it.
    Cfi = 1,
    /// By the frame pointer of the frame below it.
    Fp = 2,
    /// By the kernel, on its own stack.
    Kernel = 3,
    /// By the frame pointer through generated code. Return addresses there need not be behind a call; they
    /// are accepted because the walk arrived at native code.
    FpGenerated = 4,
    /// By no walk: a function of Python, placed between the frames of its interpreter.
    Python = 5,
    /// By a frame pointer that may belong to another frame than the one below it, which has no CFI: callers
    /// may be missing before this one.
    FpUncertain = 6,
}

impl FoundBy {
    /// Returns whether a frame pointer led to the frame.
    pub fn is_by_fp(self) -> bool {
        matches!(self, Self::Fp | Self::FpGenerated | Self::FpUncertain)
    }

    /// Returns the way with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        let all = [
            Self::Probe,
            Self::Cfi,
            Self::Fp,
            Self::Kernel,
            Self::FpGenerated,
            Self::Python,
            Self::FpUncertain,
        ];
        all.get(number as usize).copied()
    }

    /// The stable name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Cfi => "cfi",
            Self::Fp => "fp",
            Self::Kernel => "kernel",
            Self::FpGenerated => "fp_generated",
            Self::Python => "python",
            Self::FpUncertain => "fp_uncertain",
        }
    }
}
