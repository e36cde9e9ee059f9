//! The messages of pprof's `profile.proto`, by the numbers of their fields
//! (<https://github.com/google/pprof/blob/main/proto/profile.proto>). Texts are indices into the table of strings, whose
//! first is empty; ids begin at 1.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    /// The first is the program's.
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    /// A regular expression of functions that are not shown, nor what they call.
    #[prost(int64, tag = "7")]
    pub(super) drop_frames: i64,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
    #[prost(int64, repeated, tag = "13")]
    pub(super) comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    pub(super) default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// Innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    /// One for each of the sample types.
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

/// Either a text or a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) str: i64,
    #[prost(int64, tag = "3")]
    pub(super) num: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(super) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    #[prost(int64, tag = "6")]
    pub(super) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(super) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(super) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(super) has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    /// 0 for code of no module.
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    /// The functions inlined there, innermost first, and then the one that they are in; none if that has no name.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    /// 0 where it is not known.
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}

/// The id of what has a number: ids begin at 1.
pub(super) fn id(number: usize) -> u64 {
    number as u64 + 1
}
