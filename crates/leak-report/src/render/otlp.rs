//! OTLP profiles of one process at one of many moments, for an OpenTelemetry collector.
//!
//! Stacks, limits and amounts are those of the pprof profile of the same part. An OTLP profile has values of
//! one type, so there are up to four profiles, outstanding bytes first, which share one dictionary:
//! `inuse_space` and `inuse_objects` at the moment, `alloc_space` and `alloc_objects` since the last report.
//! A profile without values is left out.
//!
//! pprof's IDs begin at 1, and the first entry of each table of the dictionary stands for none. So a pprof ID
//! is an index here.

mod proto;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use indexmap::IndexSet;
use prost::Message;

use super::pprof::proto as pprof;
use super::pprof::{Amounts, LocationKind, Part};
use crate::model::{Report, Sampling, StackRef, TargetFacts};
use proto::{AnyValue, ArrayValue, Attribute, Dictionary, ExportRequest, KeyValue, Profile, Value};

/// Index of each type's value in a sample of the pprof profile, with the type's name and unit, in the order
/// of the profiles.
const TYPES: [(usize, &str, &str); 4] = [
    (3, "inuse_space", "bytes"),
    (2, "inuse_objects", "count"),
    (1, "alloc_space", "bytes"),
    (0, "alloc_objects", "count"),
];
/// Number of [`TYPES`] whose values are of a moment, not of a time span.
const OF_A_MOMENT: usize = 2;

/// Attribute of a resource that is a number.
const PID: &str = "process.pid";
const BUILD_ID: &str = "process.executable.build_id.gnu";
const FRAME_TYPE: &str = "profile.frame.type";
const COMMENT: &str = "pprof.profile.comment";

/// Profiles of one process, as a request to a collector.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The process; `None` if the profiles are not of one process.
    pub target: Option<&'a TargetFacts>,
    /// Attributes of the resource.
    pub resource: &'a BTreeMap<String, String>,
}

impl Request<'_> {
    /// Encodes the profiles of this part of `stacks`, which belong to `report`; `id` makes the ID of each.
    /// Also returns the number of profiles. `None` if all values are 0.
    pub fn encode(
        &self,
        report: &Report,
        stacks: &[StackRef<'_>],
        id: impl FnMut() -> [u8; 16],
    ) -> Option<(Vec<u8>, u64)> {
        let part = Part {
            target: self.target,
            amounts: Amounts::Both,
            names_all: false,
        };
        let (profile, kinds) = part.profile(report, stacks)?;
        let mut tables = Tables::of(&profile);
        let profiles = tables.profiles(&profile, report, id);
        let number = profiles.len() as u64;
        let scope = proto::ScopeProfiles {
            scope: Some(proto::Scope {
                name: "memleak".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            profiles,
        };
        let attributes = self.resource.iter().map(|(key, value)| KeyValue {
            key: key.clone(),
            value: Some(of_resource(key, value)),
        });
        let request = ExportRequest {
            resource_profiles: vec![proto::ResourceProfiles {
                resource: Some(proto::Resource {
                    attributes: attributes.collect(),
                }),
                scope_profiles: vec![scope],
            }],
            dictionary: Some(tables.into_dictionary(&profile, &kinds)),
        };
        Some((request.encode_to_vec(), number))
    }
}

fn of_resource(key: &str, value: &str) -> AnyValue {
    let number = value.parse().ok().filter(|_| key == PID);
    any(number.map_or_else(|| Value::String(value.to_owned()), Value::Int))
}

fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

/// Tables of the dictionary under construction, each entry once.
struct Tables<'a> {
    /// The pprof profile's strings.
    texts: &'a [String],
    strings: IndexSet<String>,
    attributes: IndexSet<Attribute>,
    stacks: IndexSet<proto::Stack>,
}

impl<'a> Tables<'a> {
    fn of(profile: &'a pprof::Profile) -> Self {
        Self {
            texts: &profile.string_table,
            strings: IndexSet::from([String::new()]),
            attributes: IndexSet::from([Attribute::default()]),
            stacks: IndexSet::from([proto::Stack::default()]),
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        let known = self.strings.get_index_of(text);
        index(known.unwrap_or_else(|| self.strings.insert_full(text.to_owned()).0))
    }

    /// Text with this index in the pprof profile.
    fn text(&self, number: i64) -> &'a str {
        let number = usize::try_from(number).ok();
        let text = number.and_then(|number| self.texts.get(number));
        text.map_or("", String::as_str)
    }

    /// Index of a text by its index in the pprof profile.
    fn copied(&mut self, number: i64) -> i32 {
        self.string(self.text(number))
    }

    fn attribute(&mut self, key: &str, value: Value) -> i32 {
        let attribute = Attribute {
            key_strindex: self.string(key),
            value: Some(any(value)),
        };
        index(self.attributes.insert_full(attribute).0)
    }

    fn profiles(
        &mut self,
        profile: &pprof::Profile,
        report: &Report,
        mut id: impl FnMut() -> [u8; 16],
    ) -> Vec<Profile> {
        let samples: Vec<_> = profile
            .sample
            .iter()
            .map(|sample| (self.stack(sample), self.labels(sample), sample))
            .collect();
        let mut profiles = Vec::new();
        for (number, &(place, kind, unit)) in TYPES.iter().enumerate() {
            let samples = samples.iter().filter_map(|(stack, labels, sample)| {
                let &value = sample.value.get(place).filter(|&&value| value > 0)?;
                Some(proto::Sample {
                    stack_index: *stack,
                    attribute_indices: labels.clone(),
                    values: vec![value],
                })
            });
            let samples: Vec<_> = samples.collect();
            if samples.is_empty() {
                continue;
            }
            let until = u64::try_from(profile.time_nanos).unwrap_or(0);
            let duration = match number < OF_A_MOMENT {
                true => 0,
                false => u64::try_from(profile.duration_nanos).unwrap_or(0),
            };
            let sampled_by = sampled_by(report.sampling);
            profiles.push(Profile {
                sample_type: Some(self.value_type(kind, unit)),
                samples,
                time_unix_nano: until.saturating_sub(duration),
                duration_nano: duration,
                period_type: sampled_by.map(|_| self.value_type("space", "bytes")),
                period: sampled_by.unwrap_or(0),
                profile_id: id().to_vec(),
                attribute_indices: vec![self.comment(profile)],
            });
        }
        profiles
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            type_strindex: self.string(kind),
            unit_strindex: self.string(unit),
        }
    }

    /// The profile's remarks about itself.
    fn comment(&mut self, profile: &pprof::Profile) -> i32 {
        let lines = profile.comment.iter();
        let lines = lines.map(|&line| any(Value::String(self.text(line).to_owned())));
        let values = lines.collect();
        self.attribute(COMMENT, Value::Array(ArrayValue { values }))
    }

    fn stack(&mut self, sample: &pprof::Sample) -> i32 {
        let stack = proto::Stack {
            location_indices: sample.location_id.iter().map(|&id| of_id(id)).collect(),
        };
        index(self.stacks.insert_full(stack).0)
    }

    fn labels(&mut self, sample: &pprof::Sample) -> Vec<i32> {
        let attribute = |label: &pprof::Label| {
            let key = format!("memleak.{}", self.text(label.key));
            let value = match label.str {
                0 => Value::Int(label.num),
                text => Value::String(self.text(text).to_owned()),
            };
            self.attribute(&key, value)
        };
        sample.label.iter().map(attribute).collect()
    }

    fn mapping(&mut self, mapping: &pprof::Mapping) -> proto::Mapping {
        let build_id = Some(self.text(mapping.build_id)).filter(|text| !text.is_empty());
        let build_id = build_id.map(|text| self.attribute(BUILD_ID, Value::String(text.to_owned())));
        proto::Mapping {
            memory_start: mapping.memory_start,
            memory_limit: mapping.memory_limit,
            file_offset: mapping.file_offset,
            filename_strindex: self.copied(mapping.filename),
            attribute_indices: build_id.into_iter().collect(),
        }
    }

    fn location(&mut self, location: &pprof::Location, kind: LocationKind) -> proto::Location {
        let frame_type = match kind {
            LocationKind::Native => Some("native"),
            LocationKind::Kernel => Some("kernel"),
            LocationKind::Python => Some("cpython"),
            // The generator of the code is unknown.
            LocationKind::Generated | LocationKind::Marker => None,
        };
        let frame_type = frame_type.map(|name| self.attribute(FRAME_TYPE, Value::String(name.to_owned())));
        let lines = location.line.iter().map(|line| proto::Line {
            function_index: of_id(line.function_id),
            line: line.line,
        });
        proto::Location {
            mapping_index: of_id(location.mapping_id),
            address: location.address,
            lines: lines.collect(),
            attribute_indices: frame_type.into_iter().collect(),
        }
    }

    fn into_dictionary(mut self, profile: &pprof::Profile, kinds: &[LocationKind]) -> Dictionary {
        let mut mapping_table = vec![proto::Mapping::default()];
        mapping_table.extend(profile.mapping.iter().map(|mapping| self.mapping(mapping)));
        let mut location_table = vec![proto::Location::default()];
        let locations = profile.location.iter().zip(kinds);
        location_table.extend(locations.map(|(location, &kind)| self.location(location, kind)));
        let mut function_table = vec![proto::Function::default()];
        let functions = profile.function.iter().map(|function| proto::Function {
            name_strindex: self.copied(function.name),
            system_name_strindex: self.copied(function.system_name),
            filename_strindex: self.copied(function.filename),
        });
        function_table.extend(functions);
        Dictionary {
            mapping_table,
            location_table,
            function_table,
            link_table: vec![proto::Link::default()],
            string_table: self.strings.into_iter().collect(),
            attribute_table: self.attributes.into_iter().collect(),
            stack_table: self.stacks.into_iter().collect(),
        }
    }
}

/// Bytes for which one allocation is recorded, if allocations are sampled by bytes.
fn sampled_by(sampling: Sampling) -> Option<i64> {
    let bytes = match sampling {
        Sampling::Bytes(bytes) | Sampling::Governed(bytes) => Some(bytes),
        Sampling::Provider(bytes) => bytes,
        Sampling::All | Sampling::Calls(_) => None,
    };
    bytes.and_then(|bytes| i64::try_from(bytes).ok())
}

/// An index as the format has it; tables are far smaller than its maximum.
fn index(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Index of the entry with this ID in the pprof profile.
fn of_id(id: u64) -> i32 {
    i32::try_from(id).unwrap_or(i32::MAX)
}
