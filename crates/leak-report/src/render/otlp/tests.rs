//! Requests to collectors, decoded by the same messages. A live test checks that these agree with the
//! official ones.

use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::model::{Amount, Estimate};
use crate::samples;

fn encoded(report: &Report) -> Option<(ExportRequest, u64)> {
    let resource = [("process.pid", "4242"), ("service.name", "leaker"), ("team", "7")];
    let resource = resource.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let request = Request {
        target: report.targets.first(),
        resource: &BTreeMap::from(resource),
    };
    let stacks: Vec<_> = report.suspects().collect();
    let mut ids = 0;
    let next = || {
        ids += 1;
        [ids; 16]
    };
    let (bytes, profiles) = request.encode(report, &stacks, next)?;
    Some((ExportRequest::decode(&bytes[..]).unwrap(), profiles))
}

fn report() -> Report {
    let mut report = samples::full();
    report.compared.since_last = Duration::from_secs(5);
    report.stacks[0].recent.since_last.allocated = Estimate::from(Amount { bytes: 90, blocks: 3 });
    report
}

/// Each profile as text, with entries of the dictionary in place of their indices.
fn text(request: &ExportRequest) -> String {
    let dictionary = request.dictionary.as_ref().unwrap();
    let at = |index: i32| usize::try_from(index).unwrap();
    let string = |index: i32| dictionary.string_table[at(index)].as_str();
    let value = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Int(number)) => number.to_string(),
        Some(Value::Array(array)) => format!("{} texts", array.values.len()),
        None => "none".to_owned(),
    };
    let attributes = |indices: &[i32]| {
        let attribute = |&index: &i32| {
            let attribute = &dictionary.attribute_table[at(index)];
            format!(" {}={}", string(attribute.key_strindex), value(&attribute.value))
        };
        indices.iter().map(attribute).collect::<String>()
    };
    let mut lines = Vec::new();
    for one in &request.resource_profiles {
        for KeyValue { key, value: of } in &one.resource.as_ref().unwrap().attributes {
            lines.push(format!("resource {key}={}", value(of)));
        }
        for profile in one.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
            let kind = profile.sample_type.as_ref().unwrap();
            lines.push(format!(
                "{}/{} from {} for {} period {} id {:?}{}",
                string(kind.type_strindex),
                string(kind.unit_strindex),
                profile.time_unix_nano,
                profile.duration_nano,
                profile.period,
                profile.profile_id[15],
                attributes(&profile.attribute_indices),
            ));
            for sample in &profile.samples {
                lines.push(format!(
                    "  {:?}{}",
                    sample.values,
                    attributes(&sample.attribute_indices)
                ));
                for &index in &dictionary.stack_table[at(sample.stack_index)].location_indices {
                    let location = &dictionary.location_table[at(index)];
                    let mapping = &dictionary.mapping_table[at(location.mapping_index)];
                    let functions = location.lines.iter().map(|line| {
                        let function = &dictionary.function_table[at(line.function_index)];
                        format!(" {}:{}", string(function.name_strindex), line.line)
                    });
                    lines.push(format!(
                        "    {:x} in {:?}{}{}{}",
                        location.address,
                        string(mapping.filename_strindex),
                        attributes(&mapping.attribute_indices),
                        functions.collect::<String>(),
                        attributes(&location.attribute_indices)
                    ));
                }
            }
        }
    }
    lines.join("\n")
}

/// Outstanding memory is of the moment, allocated memory of the time since the last report. A stack with
/// neither is in no profile.
#[test]
fn profiles_of_a_report() {
    let (request, profiles) = encoded(&report()).unwrap();
    assert_eq!(profiles, 4);
    insta::assert_snapshot!(text(&request), @r#"
resource process.pid=4242
resource service.name=leaker
resource team=7
inuse_space/bytes from 1700000000000000000 for 0 period 0 id 1 pprof.profile.comment=3 texts
  [480] memleak.allocator=malloc memleak.end=complete
    7f00000ae98b in "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30" process.executable.build_id.gnu=0a1b2c3d4e5f6071 operator new(unsigned long):0 profile.frame.type=native
    7f0000001130 in "/opt/leaker" LeakLib::slowMemoryLeak():12 main:30 profile.frame.type=native
  [40] memleak.allocator=malloc memleak.end=no_cfi
    7f0000001233 in "/opt/libplugin.so" process.executable.build_id.gnu=77 profile.frame.type=native
    7e0000000fff in ""
    7f00000011ff in "/opt/leaker" evil\u{1b}[2J\n:0 profile.frame.type=native
inuse_objects/count from 1700000000000000000 for 0 period 0 id 2 pprof.profile.comment=3 texts
  [12] memleak.allocator=malloc memleak.end=complete
    7f00000ae98b in "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30" process.executable.build_id.gnu=0a1b2c3d4e5f6071 operator new(unsigned long):0 profile.frame.type=native
    7f0000001130 in "/opt/leaker" LeakLib::slowMemoryLeak():12 main:30 profile.frame.type=native
  [1] memleak.allocator=malloc memleak.end=no_cfi
    7f0000001233 in "/opt/libplugin.so" process.executable.build_id.gnu=77 profile.frame.type=native
    7e0000000fff in ""
    7f00000011ff in "/opt/leaker" evil\u{1b}[2J\n:0 profile.frame.type=native
alloc_space/bytes from 1699999995000000000 for 5000000000 period 0 id 3 pprof.profile.comment=3 texts
  [90] memleak.allocator=malloc memleak.end=complete
    7f00000ae98b in "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30" process.executable.build_id.gnu=0a1b2c3d4e5f6071 operator new(unsigned long):0 profile.frame.type=native
    7f0000001130 in "/opt/leaker" LeakLib::slowMemoryLeak():12 main:30 profile.frame.type=native
alloc_objects/count from 1699999995000000000 for 5000000000 period 0 id 4 pprof.profile.comment=3 texts
  [3] memleak.allocator=malloc memleak.end=complete
    7f00000ae98b in "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30" process.executable.build_id.gnu=0a1b2c3d4e5f6071 operator new(unsigned long):0 profile.frame.type=native
    7f0000001130 in "/opt/leaker" LeakLib::slowMemoryLeak():12 main:30 profile.frame.type=native
"#);
}

/// The first entry of each table stands for none; each other entry is there once, and something refers to it.
#[test]
fn tables_have_no_more_than_is_needed() {
    let (request, _) = encoded(&report()).unwrap();
    let dictionary = request.dictionary.as_ref().unwrap();
    assert_eq!(dictionary.mapping_table[0], proto::Mapping::default());
    assert_eq!(dictionary.location_table[0], proto::Location::default());
    assert_eq!(dictionary.function_table[0], proto::Function::default());
    assert_eq!(dictionary.link_table, [proto::Link::default()]);
    assert_eq!(dictionary.string_table[0], "");
    assert_eq!(dictionary.attribute_table[0], Attribute::default());
    assert_eq!(dictionary.stack_table[0], proto::Stack::default());
    let strings: HashSet<_> = dictionary.string_table.iter().collect();
    assert_eq!(strings.len(), dictionary.string_table.len());
    let (functions, attributes) = (&dictionary.function_table, &dictionary.attribute_table);
    let of_functions = functions
        .iter()
        .flat_map(|function| [function.name_strindex, function.filename_strindex]);
    let of_mappings = dictionary
        .mapping_table
        .iter()
        .map(|mapping| mapping.filename_strindex);
    let of_attributes = attributes.iter().map(|attribute| attribute.key_strindex);
    let profiles = request
        .resource_profiles
        .iter()
        .flat_map(|one| &one.scope_profiles[0].profiles);
    let of_types = profiles.flat_map(|profile| {
        let kind = profile.sample_type.unwrap();
        [kind.type_strindex, kind.unit_strindex]
    });
    let used: HashSet<i32> = of_functions
        .chain(of_mappings)
        .chain(of_attributes)
        .chain(of_types)
        .collect();
    assert_eq!(used.len(), strings.len(), "{:?}", dictionary.string_table);
}

/// Sampled values have a sampling interval; without values there is no request.
#[test]
fn sampled_and_empty_reports() {
    let mut report = report();
    report.sampling = Sampling::Bytes(1024);
    let (request, _) = encoded(&report).unwrap();
    for profile in &request.resource_profiles[0].scope_profiles[0].profiles {
        assert_eq!((profile.period, profile.period_type.is_some()), (1024, true));
    }
    report.stacks.clear();
    assert!(encoded(&report).is_none());
}

/// Functions of Python and of the kernel have frame types of their own.
#[test]
fn types_of_frames() {
    let (request, _) = encoded(&samples::python::python()).unwrap();
    let text = text(&request);
    assert!(
        text.contains("profile.frame.type=cpython") && text.contains("profile.frame.type=native"),
        "{text}"
    );
}
