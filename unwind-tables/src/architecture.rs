//! Differences between the architectures whose code is unwound: DWARF's register numbers, and the location of
//! a call's return address.
//!
//! On x86-64, a call pushes it, so it is always in memory. On AArch64, a call puts it into the link register
//! `x30`, and a function that calls others saves it, nearly always above the caller's frame pointer `x29`: a
//! *frame record* (AAPCS64, "The Frame Pointer"). So the link register is known only in a running frame: at
//! the start of a walk, and below a signal frame.

use gimli::{AArch64, Register as Column, Vendor, X86_64};
use object::elf::{self, Machine};

use crate::program::{FP, LR, PC, SP};
use crate::rule::Register;

/// An architecture whose code can be unwound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Architecture {
    /// x86-64.
    #[default]
    X86_64 = 0,
    /// AArch64, 64-bit and little-endian.
    Aarch64 = 1,
}

impl Architecture {
    /// The architecture that this program is compiled for.
    pub const HOST: Self = if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    /// Returns the architecture with this number in an image; `None` for an unknown number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let known = [Self::X86_64, Self::Aarch64];
        known
            .into_iter()
            .find(|&architecture| architecture as u32 == number)
    }

    /// Returns the architecture with this number in an ELF header; `None` if its code cannot be unwound.
    pub(crate) const fn from_elf(machine: Machine) -> Option<Self> {
        match machine {
            elf::EM_X86_64 => Some(Self::X86_64),
            elf::EM_AARCH64 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// Returns the common name, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the number of bits of a user address. The bits above can hold an authentication code in an
    /// AArch64 return address.
    pub const fn address_bits(self) -> u32 {
        match self {
            Self::X86_64 => 47,
            Self::Aarch64 => 48,
        }
    }

    /// Strips the authentication code, if any, from an address.
    pub const fn strip(self, address: u64) -> u64 {
        match self {
            Self::X86_64 => address,
            Self::Aarch64 => address & ((1 << self.address_bits()) - 1),
        }
    }

    /// Returns gimli's vendor, which selects vendor-specific CFI instructions.
    pub(crate) const fn vendor(self) -> Vendor {
        match self {
            Self::X86_64 => Vendor::Default,
            Self::Aarch64 => Vendor::AArch64,
        }
    }

    /// Returns the column of the frame pointer.
    pub(crate) const fn frame_pointer(self) -> Column {
        match self {
            Self::X86_64 => X86_64::RBP,
            Self::Aarch64 => AArch64::X29,
        }
    }

    /// Returns the column of the stack pointer.
    pub(crate) const fn stack_pointer(self) -> Column {
        match self {
            Self::X86_64 => X86_64::RSP,
            Self::Aarch64 => AArch64::SP,
        }
    }

    /// Returns the pseudo-register column that is 1 if the return address has an authentication code.
    pub(crate) const fn sign_state(self) -> Option<Column> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => Some(AArch64::RA_SIGN_STATE),
        }
    }

    /// Returns the register with this DWARF number if walkers know it in every frame.
    pub(crate) fn base(self, column: u16) -> Option<Register> {
        if column == self.stack_pointer().0 {
            Some(Register::Sp)
        } else if column == self.frame_pointer().0 {
            Some(Register::Fp)
        } else {
            None
        }
    }

    /// Returns the number in rule programs of a register that they can use.
    pub(crate) fn number(self, column: Column) -> Option<u8> {
        match (self, column) {
            (Self::X86_64, Column(number)) => u8::try_from(number).ok().filter(|&number| number <= PC),
            (Self::Aarch64, AArch64::SP) => Some(SP),
            (Self::Aarch64, AArch64::X29) => Some(FP),
            (Self::Aarch64, AArch64::X30) => Some(LR),
            (Self::Aarch64, _) => None,
        }
    }
}
