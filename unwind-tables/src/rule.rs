//! Rules: how to get from a frame to its caller.
//!
//! Pure semantics, an equation per variant. `translate` makes rules, `packed` and `program` pack them for the
//! kernel side, `walk` applies them.

use std::fmt;

use crate::program::ProgramId;

/// A register whose value walkers know in every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// The stack pointer (`rsp`, `sp`).
    Sp,
    /// The frame pointer (`rbp`, `x29`).
    Fp,
}

/// Equation of the canonical frame address (CFA), the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule {
    /// `cfa = register + offset`
    Offset {
        /// Base register.
        register: Register,
        /// Offset in bytes.
        offset: i32,
    },
    /// `cfa = *(register + at) + offset`
    ///
    /// With the frame pointer this is GCC's DRAP form (functions that realign their stack).
    Deref {
        /// Base register.
        register: Register,
        /// Bytes from the register to the slot.
        at: i32,
        /// Bytes added to the slot's value.
        offset: i32,
    },
    /// `cfa = sp + 8 + (if pc & 15 >= threshold { 8 } else { 0 })`
    ///
    /// A procedure linkage table (PLT): each 16-byte entry pushes a word half-way.
    Plt {
        /// Offset in the entry of the first instruction after the push.
        threshold: u8,
    },
}

/// Equation of a register of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// `caller's value = this frame's value`
    Same,
    /// `caller's value = *(cfa + offset)`
    AtCfa(i32),
    /// `caller's value = *(register + offset)`, with this frame's register
    At {
        /// Base register.
        register: Register,
        /// Offset in bytes.
        offset: i32,
    },
}

/// A frame whose caller can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameRule {
    /// Equation of the CFA, the caller's stack pointer.
    pub cfa: CfaRule,
    /// Equation of the return address. [`Saved::Same`] only on AArch64: it is in the link register, which is
    /// known only in a running frame.
    pub ra: Saved,
    /// True if the return address has an authentication code (AArch64), which must be stripped.
    pub ra_signed: bool,
    /// Equation of the caller's frame pointer.
    pub fp: Saved,
    /// True for a signal frame: its caller was interrupted, so the caller's pc is exact, not a return
    /// address.
    pub signal_frame: bool,
}

/// Rule of an unwind table for one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnwindRule {
    /// The caller is computed by this rule, which can be packed.
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

/// Reason why no rule expresses a row. Counted per object and per walk; a walk ends there instead of
/// guessing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// The CFA is an offset from a register that is not a general register.
    CfaRegister = 1,
    /// The CFA is an expression that cannot be a rule program.
    CfaExpression = 2,
    /// The return address is not saved, or is in a register that is not a general register.
    RaRegister = 3,
    /// The return address is an expression that cannot be a rule program.
    RaExpression = 4,
    /// The frame pointer is not preserved, or is in a register that is not a general register.
    FpRegister = 5,
    /// The frame pointer is an expression that cannot be a rule program.
    FpExpression = 6,
    /// The caller's stack pointer is neither the CFA nor anything a program can compute.
    ValueRule = 7,
    /// An offset does not fit the widest rule.
    OffsetRange = 8,
    /// The FDE's instructions are malformed from here on.
    Malformed = 9,
    /// The code has switched to another stack, which its CFI does not describe.
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

    /// Returns the reason with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&reason| reason as u32 == number)
    }

    /// Returns the stable name used in reports.
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
