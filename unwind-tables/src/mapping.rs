//! What a walk knows of the process's memory: which code is where, and how far that can be trusted.
//!
//! A mapping list is as old as its last publication, and code comes and goes without asking. So an entry
//! carries how to tell that it still holds ([`Identity`]); a walk asks before it uses anything of it. The kernel's
//! counterpart is `bpf/walk/mappings.h`.

use crate::addr::{Avma, Bias};
use crate::architecture::Architecture;

/// User addresses are below 2 to the power of this; nothing above is looked up.
pub const ADDRESS_BITS: u32 = Architecture::HOST.address_bits();
/// Words that tell one object from every other.
pub const CHECKS: usize = 2;

/// What an executable mapping holds, as far as unwinding goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MappingKind {
    /// An object whose table is loaded.
    Table = 0,
    /// An object whose table is still being built, or could not be loaded.
    Pending = 1,
    /// An object that has no CFI at all.
    NoCfi = 2,
    /// Anonymous memory: JIT code.
    Anonymous = 3,
    /// The kernel's return probe trampoline.
    Trampoline = 4,
}

/// What it takes for an entry of the list to be true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Trust {
    /// Nothing: as long as the program runs, nothing unloads it.
    #[default]
    Settled = 0,
    /// The process's memory holds the words of its checks.
    Checked = 1,
    /// No change of the mappings is announced.
    Unchanged = 2,
    /// Both: its checks say too little alone.
    CheckedUnchanged = 3,
}

/// A word that stands in the process's memory while the mapping is what the list says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Check {
    /// Where.
    pub at: Avma,
    /// What.
    pub word: u64,
}

/// How to tell that a mapping still holds what the list says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// What it takes.
    pub trust: Trust,
    /// Words to compare.
    pub checks: [Check; CHECKS],
}

impl Identity {
    /// Of what stays as long as the program runs.
    pub const SETTLED: Self = Self::unchecked(Trust::Settled);
    /// Of what there is nothing to compare by.
    pub const UNCHANGED: Self = Self::unchecked(Trust::Unchanged);

    const fn unchecked(trust: Trust) -> Self {
        let none = Check {
            at: Avma::new(0),
            word: 0,
        };
        Self {
            trust,
            checks: [none; CHECKS],
        }
    }
}

/// One executable mapping of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: Avma,
    /// First address after it.
    pub end: Avma,
    /// From its addresses to the object's own.
    pub bias: Bias,
    /// Where the object's image starts in the table words; meaningful for [`MappingKind::Table`].
    pub image_at: u32,
    /// What it holds.
    pub kind: MappingKind,
    /// Whether it still does.
    pub identity: Identity,
}

/// The mapping that holds `address`, among `mappings` in ascending order.
pub fn find(mappings: &[Mapping], address: Avma) -> Option<&Mapping> {
    if address.get() >> ADDRESS_BITS != 0 {
        return None;
    }
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}

impl Mapping {
    /// The object of the first image, at its own addresses: for single steps that no process is needed for.
    pub const fn everywhere() -> Self {
        Self {
            start: Avma::new(0),
            end: Avma::new(1 << ADDRESS_BITS),
            bias: Bias::from_raw(0),
            image_at: 0,
            kind: MappingKind::Table,
            identity: Identity::SETTLED,
        }
    }

    /// Whether it still holds what the list says. `changing`: a change of the mappings is announced that the
    /// list does not have yet.
    pub fn is_current(&self, changing: bool, mut read: impl FnMut(Avma) -> Option<u64>) -> bool {
        let trust = self.identity.trust;
        let checked = matches!(trust, Trust::Checked | Trust::CheckedUnchanged);
        let unchanged = matches!(trust, Trust::Unchanged | Trust::CheckedUnchanged);
        let mut holds = |check: &Check| read(check.at) == Some(check.word);
        !(unchanged && changing) && (!checked || self.identity.checks.iter().all(&mut holds))
    }
}
