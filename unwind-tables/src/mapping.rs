//! Mapping lists: the executable mappings of a process, and checks that they are current.
//!
//! A process can map and unmap code after a mapping list was published. So each entry has an [`Identity`], by
//! which a walk checks the entry before it uses it. The kernel side's counterpart is `bpf/walk/mappings.h`.

use crate::addr::{Avma, Bias};
use crate::architecture::Architecture;

/// Number of bits of a user address; addresses with more are not looked up.
pub const ADDRESS_BITS: u32 = Architecture::HOST.address_bits();
/// Number of words by which a mapping's object is recognized.
pub const CHECKS: usize = 2;

/// Kinds of executable mappings, by how a walk gets rules for their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MappingKind {
    /// An object whose table is loaded.
    Table = 0,
    /// An object whose table is not loaded yet: it is being built, or waits for its file or for room.
    Pending = 1,
    /// An object that has no CFI at all.
    NoCfi = 2,
    /// Anonymous memory: JIT code.
    Anonymous = 3,
    /// The kernel's return probe trampoline.
    Trampoline = 4,
    /// Anonymous, of a program whose generated code is known to keep frame pointers.
    AnonymousLinked = 5,
    /// Anonymous, where all code is known to keep frame pointers.
    AnonymousMethods = 6,
    /// Anonymous: a stub that calls native code after it has pushed the frame pointer, and has not set it.
    /// The pushed value is at the stack pointer.
    AnonymousStub = 7,
    /// An object for which no table can be made.
    NoTable = 8,
    /// Anonymous, of a program whose generated functions are known to begin by pushing the frame pointer.
    AnonymousPushed = 9,
}

/// Checks that an entry of the list must pass before a walk uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Trust {
    /// None: it cannot be unloaded while its program runs.
    #[default]
    Settled = 0,
    /// The process's memory must contain the words of its checks.
    Checked = 1,
    /// No change of the mappings may be announced.
    Unchanged = 2,
    /// Both, for an object whose checks alone do not identify it.
    CheckedUnchanged = 3,
}

/// A word that the process's memory contains at `at` while the list's entry is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Check {
    /// Address of the word.
    pub at: Avma,
    /// Expected value.
    pub word: u64,
}

/// Checks by which a walk recognizes that a mapping is current.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Checks that are required.
    pub trust: Trust,
    /// Words to compare, if `trust` requires it.
    pub checks: [Check; CHECKS],
}

impl Identity {
    /// Identity of a mapping that cannot be unloaded while its program runs.
    pub const SETTLED: Self = Self::unchecked(Trust::Settled);
    /// Identity of a mapping without words to compare.
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
    /// Bias between its addresses and the object's own.
    pub bias: Bias,
    /// Index of the image's first word in the table words, for [`MappingKind::Table`].
    pub image_at: u32,
    /// Kind of its content.
    pub kind: MappingKind,
    /// Checks that it is current.
    pub identity: Identity,
}

/// Returns the mapping that contains `address`, among `mappings` in ascending order.
pub fn find(mappings: &[Mapping], address: Avma) -> Option<&Mapping> {
    if address.get() >> ADDRESS_BITS != 0 {
        return None;
    }
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}

impl Mapping {
    /// Returns a mapping of all addresses without bias, to the first image: for single steps without a
    /// process.
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

    /// Returns whether the mapping is current. `changing`: a change of the mappings was announced that the
    /// list does not contain yet.
    pub fn is_current(&self, changing: bool, mut read: impl FnMut(Avma) -> Option<u64>) -> bool {
        let trust = self.identity.trust;
        let checked = matches!(trust, Trust::Checked | Trust::CheckedUnchanged);
        let unchanged = matches!(trust, Trust::Unchanged | Trust::CheckedUnchanged);
        let mut holds = |check: &Check| read(check.at) == Some(check.word);
        !(unchanged && changing) && (!checked || self.identity.checks.iter().all(&mut holds))
    }
}
