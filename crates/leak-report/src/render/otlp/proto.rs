//! The messages of OTLP profiles that are sent, by their field numbers
//! (<https://github.com/open-telemetry/opentelemetry-proto>, `profiles/v1development/profiles.proto` and what
//! it imports, at 1.10). Texts and messages of the dictionary are referred to by their index; the first entry
//! of each table is the default message, which stands for none.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    pub(super) dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// Values of one type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, optional, tag = "1")]
    pub(super) sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
    /// Start of the time span of the values.
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    /// 0 for values of a moment.
    #[prost(uint64, tag = "4")]
    pub(super) duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    pub(super) period: i64,
    /// 16 bytes that identify a profile that is sent again.
    #[prost(bytes = "vec", tag = "7")]
    pub(super) profile_id: Vec<u8>,
    #[prost(int32, repeated, tag = "11")]
    pub(super) attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int32, tag = "1")]
    pub(super) type_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) unit_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    #[prost(int32, tag = "1")]
    pub(super) stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(super) attribute_indices: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    pub(super) values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    pub(super) mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    pub(super) location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    pub(super) function_table: Vec<Function>,
    /// The default link alone: samples belong to no traces.
    #[prost(message, repeated, tag = "4")]
    pub(super) link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    pub(super) string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attribute_table: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    pub(super) stack_table: Vec<Stack>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "3")]
    pub(super) file_offset: u64,
    #[prost(int32, tag = "4")]
    pub(super) filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    pub(super) attribute_indices: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(int32, tag = "1")]
    pub(super) mapping_index: i32,
    #[prost(uint64, tag = "2")]
    pub(super) address: u64,
    #[prost(message, repeated, tag = "3")]
    pub(super) lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    pub(super) attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Line {
    #[prost(int32, tag = "1")]
    pub(super) function_index: i32,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Function {
    #[prost(int32, tag = "1")]
    pub(super) name_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) system_name_strindex: i32,
    #[prost(int32, tag = "3")]
    pub(super) filename_strindex: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Link {}

/// Innermost location first.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Stack {
    #[prost(int32, repeated, tag = "1")]
    pub(super) location_indices: Vec<i32>,
}

/// An attribute of the dictionary.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Attribute {
    #[prost(int32, tag = "1")]
    pub(super) key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// An attribute of a resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3, 5")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(message, tag = "5")]
    Array(ArrayValue),
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<AnyValue>,
}
