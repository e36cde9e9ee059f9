//! What is in the chunks of a recording, as types: names of fields are names in the file.
//!
//! A field that has its usual value (0, nothing, an empty list) is left out. Fields are only ever added; a reader skips
//! those that it does not know, and takes those that are missing for usual. Whatever it cannot understand like that is
//! a new format.
//!
//! Words (`"complete"`, `"cfi"`, `"exited"`) are those of JSON reports. Texts are numbers of definitions, since the same
//! ones are in every report. Times are in nanoseconds.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::leak;

/// Stacks and frames of all stacks of one report.
pub(super) const MOST_STACKS: usize = 1 << 20;
pub(super) const MOST_FRAMES: usize = 1 << 25;
/// Single blocks of one report, and of one chunk.
pub(super) const MOST_BLOCKS: usize = 1 << 22;
pub(super) const BLOCKS_IN_CHUNK: usize = 1 << 16;
/// Stacks whose amounts, or blocks, are in one chunk.
pub(super) const STACKS_IN_CHUNK: usize = 1 << 11;
/// Definitions of one sort: in one chunk, and in all.
const DEFINITIONS_IN_CHUNK: usize = 1 << 19;
pub(super) const MOST_DEFINITIONS: usize = 1 << 22;
/// Processes of one report, those that ended among them.
const MOST_TARGETS: usize = 1 << 18;
/// Of everything of which there is a handful.
const MOST_OF_OTHERS: usize = 1 << 16;

/// A word with a fixed meaning.
pub(super) type Word = Cow<'static, str>;
/// The number of a definition, counted from 0 for each sort of them over the whole file.
pub(super) type Number = u32;

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Types of entries: all fields can be left out.
macro_rules! entries {
    ($derived:tt $($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ })+) => {
        $(entry! { $derived $(#[$doc])* $name { $($(#[$field_doc])* $field: $type,)+ } })+
    };
}

macro_rules! entry {
    (($($derived:ident),*) $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, $($derived,)* Serialize, Deserialize)]
        #[serde(default)]
        pub(super) struct $name {
            $($(#[$field_doc])* #[serde(skip_serializing_if = "is_usual")] pub(super) $field: $type,)+
        }
    };
}

/// Entries that have the very fields of a type of the program: a field that is new there and not here does not compile.
macro_rules! mirrors {
    ($derived:tt $($(#[$doc:meta])* $name:ident of $of:path { $($field:ident: $type:ty,)+ })+) => {
        $(
            entry! { $derived $(#[$doc])* $name { $($field: $type,)+ } }

            impl From<$of> for $name {
                fn from(value: $of) -> Self {
                    let $of { $($field),+ } = value;
                    Self { $($field: $field.into()),+ }
                }
            }

            impl From<$name> for $of {
                fn from(value: $name) -> Self {
                    let $name { $($field),+ } = value;
                    Self { $($field: $field.into()),+ }
                }
            }
        )+
    };
}

entries! { ()
    /// Where a recording comes from.
    Head {
        /// The version that recorded.
        memleak: String,
        /// When, since 1970.
        created_unix_ns: u64,
        /// On which machine, unless that is nobody's business.
        host: Option<Host>,
        /// Names are not the real ones.
        anonymized: bool,
    }

    Host {
        name: String,
        /// Of the kernel.
        release: String,
        machine: String,
    }

    /// What is referred to by number. In this order: nothing refers to what comes later.
    Definitions {
        texts: List<Text, DEFINITIONS_IN_CHUNK>,
        modules: List<Module, DEFINITIONS_IN_CHUNK>,
        names: List<Names, DEFINITIONS_IN_CHUNK>,
        frames: List<Frame, DEFINITIONS_IN_CHUNK>,
        paths: List<Path, DEFINITIONS_IN_CHUNK>,
        sites: List<Site, DEFINITIONS_IN_CHUNK>,
    }

    /// A report but its stacks.
    Report {
        /// Its number among all that were made, from 1; not all need be recorded.
        number: u64,
        /// When totals were read, since 1970.
        unix_ns: u64,
        /// Local.
        time: TimeOfDay,
        elapsed_ns: u128,
        unwind: Word,
        top: u64,
        /// Frames that stacks have at most, if the user set a limit.
        depth: Option<u64>,
        /// The order of stacks, if the user chose one.
        order: Option<Word>,
        quantity: Quantity,
        compared: Compared,
        targets: List<Target, MOST_TARGETS>,
        sampling: Option<Sampling>,
        events: Events,
        losses: Losses,
        completeness: Completeness,
        ends: List<EndGroup, MOST_OF_OTHERS>,
        steps: List<Steps, MOST_OF_OTHERS>,
        overhead: Option<Overhead>,
        kernel: Option<Kernel>,
        own: OwnMemory,
        /// Entries of `amts` chunks that belong to it.
        stacks: u64,
        /// Upper bounds of the classes of ages, but of the last, which has none.
        age_bounds_ns: Vec<u128>,
    }

    Target {
        pid: u32,
        instance: u32,
        parent: Option<u32>,
        comm: Number,
        exe: Option<Number>,
        ended: Option<Word>,
        memory: Option<Parts>,
    }

    /// What flame graphs show.
    Quantity {
        measure: Word,
        unit: Word,
    }

    Compared {
        older_ns: Option<u128>,
        first: bool,
        since_last_ns: u128,
        since_baseline_ns: u128,
        marked: Option<TimeOfDay>,
    }

    Sampling {
        /// `calls`, `bytes` or `governed`.
        method: Word,
        interval: u64,
    }

    Losses {
        blocks: u64,
        bytes: u64,
        frees: u64,
        processes: u64,
        calls: u64,
        events: u64,
        causes: BTreeMap<String, u64>,
    }

    Completeness {
        stacks: BTreeMap<Word, u64>,
        allocations: BTreeMap<Word, u64>,
        frames: BTreeMap<Word, u64>,
    }

    EndGroup {
        module: Option<Number>,
        end: Word,
        stacks: u64,
        allocations: u64,
        addresses: Vec<u64>,
    }

    Steps {
        module: Option<Number>,
        cfi: u64,
        fp: u64,
    }

    Overhead {
        seconds: f64,
        entries: f64,
        /// By the program's name.
        programs: BTreeMap<Word, ProgramTime>,
        traps: f64,
        trap_nanoseconds: f64,
        unmeasured: f64,
        lately: f64,
        each_trap: Traps,
        measured: bool,
        governed: Option<Governed>,
    }

    Kernel {
        release: Number,
        kinds: List<Kind, MOST_OF_OTHERS>,
    }

    Kind {
        allocator: Number,
        outstanding: Amount,
        allocated: Amount,
        holds_others: bool,
    }

    /// What a report says of a site.
    Amounts {
        site: Number,
        ended: Option<Word>,
        outstanding: Estimate,
        allocated: Estimate,
        lost: Amount,
        young: Option<Estimate>,
        /// By class, youngest first.
        ages: Option<Vec<Estimate>>,
        since_last: Change,
        since_baseline: Change,
        suspicion: Option<Suspicion>,
    }

    /// Single blocks of a stack; more entries of the same stack have more of them.
    Blocks {
        /// Its place in the report, from 0.
        stack: u64,
        listed: List<Block, BLOCKS_IN_CHUNK>,
        /// Blocks that are in no list.
        left_out: u64,
    }

    Block {
        address: u64,
        size: u64,
        age_ns: u128,
        /// How many blocks it stands for.
        stands_for: f64,
    }

    /// The end of a recording.
    Done {
        /// Reports that were made.
        made: u64,
        /// Those of them that are recorded.
        recorded: u64,
    }
}

mirrors! { ()
    Amount of crate::model::Amount { bytes: u64, blocks: u64, }
    /// Variances; that of blocks in units of 2⁻³².
    Spread of crate::model::Spread { recorded: u64, bytes: u128, blocks: u128, }
    Estimate of crate::model::Estimate { amount: Amount, spread: Spread, }
    Change of leak::Change { allocated: Estimate, freed: Estimate, }
    Suspicion of leak::Suspicion {
        reports: u32,
        growth: f64,
        certainty: f64,
        steadiness: f64,
        kept: Option<f64>,
        age_spread: Option<f64>,
    }
    Events of crate::model::Events {
        allocations: u64,
        frees: u64,
        unknown_frees: u64,
        own_unknown_frees: u64,
        failed: u64,
        missed_frees: u64,
        abandoned_calls: u64,
        probe_hits: u64,
        filtered: Amount,
    }
    OwnMemory of crate::model::OwnMemory { resident_bytes: u64, peak_bytes: u64, kernel_bytes: u64, }
    Parts of crate::model::Parts {
        rss: u64,
        tracked: u64,
        before_attach_at_most: u64,
        slack_at_least: u64,
        thread_stacks: u64,
        files: u64,
        shared: u64,
        unexplained: u64,
        not_resident: u64,
    }
    ProgramTime of crate::model::ProgramTime { runs: f64, nanoseconds: f64, }
    Traps of crate::model::Traps { emulated: f64, stepped: Option<f64>, returning: f64, empty_program: f64, }
    Governed of crate::model::Governed {
        limit: f64,
        now: u64,
        least: u64,
        most: u64,
        changes: u64,
        floor: Option<f64>,
    }
    TimeOfDay of crate::model::TimeOfDay { hour: u8, minute: u8, second: u8, }
}

// Definitions are told apart by what they say.
entries! { (Eq, Hash)
    Module {
        path: Number,
        build_id: Option<Number>,
        code: List<CodeSegment, MOST_OF_OTHERS>,
        table: Option<TableFacts>,
    }

    /// Addresses of code, in the module's own space, and where the first is in the file.
    CodeSegment {
        start: u64,
        end: u64,
        offset: u64,
    }

    /// What is known of a code address.
    Names {
        symbol: Option<Number>,
        /// From the function's first byte.
        offset: Option<u64>,
        file: Option<Number>,
        line: Option<u32>,
        /// Innermost first.
        inlined: List<Inlined, MOST_OF_OTHERS>,
        /// Why something is missing.
        gap: Option<Word>,
    }

    Inlined {
        symbol: Option<Number>,
        file: Option<Number>,
        line: Option<u32>,
    }

    Location {
        /// In the process.
        pc: u64,
        module: Option<Number>,
        /// In the module's own space.
        address: u64,
    }

    Frame {
        at: Location,
        /// The address is the very instruction, not the one behind a call.
        exact: bool,
        found_by: Word,
        names: Number,
    }

    /// An allocator function called by a stack.
    Site {
        pid: u32,
        instance: u32,
        allocator: Number,
        /// What mappings are for.
        kind: Option<Word>,
        /// Of its innermost frame; none for a stack without frames.
        path: Option<Number>,
        end: Word,
        end_at: Option<Location>,
    }
}

mirrors! { (Eq, Hash)
    TableFacts of crate::model::TableFacts {
        code_bytes: u64,
        covered_bytes: u64,
        rows: u64,
        unsupported_rows: u64,
        table_bytes: u64,
    }
}

/// A frame and those that called it: the path of its caller, if it has one, and the frame.
///
/// Stacks share their outer frames; what they share is there once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Path(pub(super) Option<Number>, pub(super) Number);

/// So many things at most: a few bytes of a file must not become gigabytes of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct List<T, const MOST: usize>(pub(super) Vec<T>);

impl<T, const MOST: usize> Default for List<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MOST: usize> FromIterator<T> for List<T, MOST> {
    fn from_iter<I: IntoIterator<Item = T>>(things: I) -> Self {
        Self(things.into_iter().collect())
    }
}

impl<T: Serialize, const MOST: usize> Serialize for List<T, MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for List<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for ListVisitor<T, MOST> {
    type Value = List<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MOST}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut things = Vec::new();
        while let Some(thing) = sequence.next_element()? {
            if things.len() == MOST {
                return Err(de::Error::invalid_length(MOST + 1, &self));
            }
            things.push(thing);
        }
        Ok(List(things))
    }
}

/// A name or a path: text, or bytes where it is no UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Text(pub(super) OsString);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => serializer.serialize_bytes(self.0.as_bytes()),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.into()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Text, E> {
        Ok(Text(text.into()))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
        Ok(Text(OsString::from_vec(bytes.to_vec())))
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Text, E> {
        Ok(Text(OsString::from_vec(bytes)))
    }
}
