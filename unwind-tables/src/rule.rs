//! What one row of unwind information says: how to get from a frame to its caller.
//!
//! Pure semantics, an equation per variant. Where rules come from is `translate`; how they are packed
//! for the kernel is `packed` and `program`; how they are applied is `walk`.

use std::fmt;

use crate::program::ProgramId;

/// A register whose value the walker knows in every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// The stack pointer (`rsp`, `sp`).
    Sp,
    /// The frame pointer (`rbp`, `x29`).
    Fp,
}

/// How the canonical frame address (CFA), the caller's stack pointer, is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule {
    /// `cfa = register + offset`
    Offset {
        /// The register.
        register: Register,
        /// Bytes.
        offset: i32,
    },
    /// `cfa = *(register + at) + offset`
    ///
    /// With the frame pointer this is GCC's DRAP form (functions that realign their stack).
    Deref {
        /// The register.
        register: Register,
        /// Bytes from the register to the slot.
        at: i32,
        /// Bytes added to the slot's value.
        offset: i32,
    },
    /// `cfa = sp + 8 + (if pc & 15 >= threshold { 8 } else { 0 })`
    ///
    /// A procedure linkage table: each 16-byte entry pushes a word half-way.
    Plt {
        /// The first byte of an entry that runs after the push.
        threshold: u8,
    },
}

/// Where a register of the caller is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// `caller's value = this frame's value`
    Same,
    /// `caller's value = *(cfa + offset)`
    AtCfa(i32),
    /// `caller's value = *(register + offset)`, with this frame's register
    At {
        /// The register.
        register: Register,
        /// Bytes.
        offset: i32,
    },
}

/// A frame whose caller can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameRule {
    /// The caller's stack pointer.
    pub cfa: CfaRule,
    /// The return address. [`Saved::Same`] only on AArch64: it is in the link register, of which only a frame that was
    /// running has a value.
    pub ra: Saved,
    /// The return address has an authentication code (AArch64), which is no part of it.
    pub ra_signed: bool,
    /// The caller's frame pointer.
    pub fp: Saved,
    /// The frame was interrupted, not called from: its caller's pc is exact, not a return address.
    pub signal_frame: bool,
}

/// What the unwind table says for one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnwindRule {
    /// The caller is computed by this rule, which packs.
    Frame(FrameRule),
    /// The caller is computed by this program of the table.
    Program(ProgramId),
    /// The return address is undefined: this is the outermost frame of its stack.
    EndOfStack,
    /// No CFI covers this address.
    Gap,
    /// CFI covers this address, but the table cannot express it.
    Unsupported(Reason),
}

/// Why a row cannot be expressed. Counted per object and per walk, never guessed around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// The CFA is an offset from a register that is not a general one.
    CfaRegister = 1,
    /// The CFA is an expression that is no program.
    CfaExpression = 2,
    /// The return address is said to be nowhere, or in a register that is not a general one.
    RaRegister = 3,
    /// The return address is an expression that is no program.
    RaExpression = 4,
    /// The frame pointer is not preserved, or is in a register that is not a general one.
    FpRegister = 5,
    /// The frame pointer is an expression that is no program.
    FpExpression = 6,
    /// The caller's stack pointer is neither the CFA nor anything a program can compute.
    ValueRule = 7,
    /// An offset does not fit the widest rule.
    OffsetRange = 8,
    /// The FDE's instructions are malformed from here on.
    Malformed = 9,
    /// The code has gone to another stack, of which its CFI says nothing.
    StackSwitch = 10,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::CfaRegister,
        Self::CfaExpression,
        Self::RaRegister,
        Self::RaExpression,
        Self::FpRegister,
        Self::FpExpression,
        Self::ValueRule,
        Self::OffsetRange,
        Self::Malformed,
        Self::StackSwitch,
    ];

    /// The reason with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&reason| reason as u32 == number)
    }

    /// The stable name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::CfaRegister => "cfa_register",
            Self::CfaExpression => "cfa_expression",
            Self::RaRegister => "ra_register",
            Self::RaExpression => "ra_expression",
            Self::FpRegister => "fp_register",
            Self::FpExpression => "fp_expression",
            Self::ValueRule => "value_rule",
            Self::OffsetRange => "offset_range",
            Self::Malformed => "malformed",
            Self::StackSwitch => "stack_switch",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
