//! Tables that samples refer to: strings, functions, mappings and locations, each entry once, in order of
//! first use.

use std::collections::HashMap;

use indexmap::IndexSet;
use unwind_tables::addr::Avma;
use unwind_tables::walk::FoundBy;

use super::super::flame::left_out_marker;
use super::super::printable;
use super::mappings::{Mappings, Resolved};
use super::proto::{self, Function, Label, Line, Profile, Sample, id};
use super::{Part, SAMPLE_TYPES, signed};
use crate::model::{FrameId, FrameRef, InstanceEnd, RegionKind, Report, StackPart, StackRef, TargetFacts};

/// Name of a function without a symbol, at an address where other functions have one.
const NAMELESS: &str = "[unknown]";

/// One value for each sample type.
pub(super) type Values = [u64; SAMPLE_TYPES.len()];

/// A profile to which stacks are added.
pub(super) struct Table<'a> {
    /// Targets by instance.
    targets: HashMap<u32, &'a TargetFacts>,
    /// True if samples have labels of their process.
    names_processes: bool,
    /// True if code without a symbol is named by its module.
    names_all: bool,
    /// Executable of the traced program.
    program: Option<&'a str>,
    strings: IndexSet<String>,
    functions: IndexSet<FunctionKey>,
    mappings: Mappings<'a>,
    locations: IndexSet<LocationKey>,
    /// Location IDs by frame.
    known: HashMap<FrameId, u64>,
    samples: IndexSet<SampleKey>,
    /// Values by sample number.
    values: Vec<Values>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FunctionKey {
    name: i64,
    filename: i64,
}

/// Kind of a location, which the format itself does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum LocationKind {
    Native,
    /// Code outside modules.
    Generated,
    Kernel,
    Python,
    /// Something other than code.
    Marker,
}

impl LocationKind {
    fn of(frame: FrameRef<'_>) -> Self {
        match frame.found_by {
            FoundBy::Kernel => Self::Kernel,
            FoundBy::Python => Self::Python,
            FoundBy::Probe | FoundBy::Cfi | FoundBy::Fp | FoundBy::FpGenerated | FoundBy::FpUncertain => {
                match frame.place() {
                    Some(_) => Self::Native,
                    None => Self::Generated,
                }
            }
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
struct LocationKey {
    kind: LocationKind,
    /// Number of the mapping; `None` outside modules.
    mapping: Option<usize>,
    address: Avma,
    lines: Vec<Line>,
}

#[derive(PartialEq, Eq, Hash)]
struct SampleKey {
    locations: Vec<u64>,
    labels: Vec<Label>,
}

impl<'a> Table<'a> {
    /// An empty table for all processes of `report`.
    pub(super) fn of(report: &'a Report) -> Self {
        let targets = &report.targets;
        let mut table = Self {
            targets: targets.iter().map(|target| (target.instance, target)).collect(),
            names_processes: true,
            names_all: false,
            program: targets.first().and_then(|target| target.exe.as_deref()),
            strings: IndexSet::new(),
            functions: IndexSet::new(),
            mappings: Mappings::new(),
            locations: IndexSet::new(),
            known: HashMap::new(),
            samples: IndexSet::new(),
            values: Vec::new(),
        };
        table.string("");
        table
    }

    /// An empty table for one process, which the sender names, so that samples do not.
    pub(super) fn of_part(report: &'a Report, part: &Part<'a>) -> Self {
        let target = part.target;
        Self {
            names_processes: false,
            names_all: part.names_all,
            program: target.and_then(|target| target.exe.as_deref()),
            ..Self::of(report)
        }
    }

    /// Makes it a table in which code without a symbol is named by its module.
    pub(super) fn naming_all(mut self) -> Self {
        self.names_all = true;
        self
    }

    /// Index of a text; adds it if it is new.
    pub(super) fn string(&mut self, text: &str) -> i64 {
        index(&mut self.strings, text)
    }

    /// Adds a stack with its values. Stacks with equal locations and labels are one sample.
    pub(super) fn add(&mut self, stack: StackRef<'a>, values: Values) {
        let mut locations: Vec<_> = stack
            .parts()
            .map(|part| match part {
                StackPart::Frame(frame) => self.location(frame),
                StackPart::LeftOut(frames) => self.marker(&left_out_marker(frames)),
            })
            .collect();
        if locations.is_empty() {
            // Views omit a sample without locations.
            locations.push(self.marker(&format!("[{}]", stack.end.name())));
        }
        let labels = self.labels(stack);
        self.add_sample(SampleKey { locations, labels }, values);
    }

    /// Adds values under a name, without frames.
    pub(super) fn add_marker(&mut self, name: &str, values: Values) {
        let locations = vec![self.marker(name)];
        let labels = Vec::new();
        self.add_sample(SampleKey { locations, labels }, values);
    }

    fn add_sample(&mut self, key: SampleKey, values: Values) {
        let number = self.samples.insert_full(key).0;
        if number == self.values.len() {
            self.values.push(Values::default());
        }
        for (sum, value) in self.values[number].iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
    }

    fn labels(&mut self, stack: StackRef<'_>) -> Vec<Label> {
        let target = self.targets.get(&stack.instance).copied();
        let target = target.filter(|_| self.names_processes);
        let comm = target.map(|target| printable(&target.comm));
        let ended = stack.ended.filter(|_| self.names_processes);
        let allocator = printable(stack.allocator());
        let texts = [
            ("allocator", Some(&*allocator)),
            ("end", Some(stack.end.name())),
            ("kind", stack.kind.map(RegionKind::name)),
            ("comm", comm.as_deref()),
            ("ended", ended.map(InstanceEnd::name)),
        ];
        let mut labels = Vec::new();
        for (key, text) in texts {
            if let Some(text) = text {
                labels.push(Label {
                    key: self.string(key),
                    str: self.string(text),
                    num: 0,
                });
            }
        }
        // The pid of the kernel and of several processes together is 0, which the format reads as no label.
        if stack.pid != 0 && self.names_processes {
            labels.push(Label {
                key: self.string("pid"),
                str: 0,
                num: stack.pid.into(),
            });
        }
        labels
    }

    fn location(&mut self, frame: FrameRef<'a>) -> u64 {
        if let Some(&id) = self.known.get(&frame.id()) {
            return id;
        }
        // Conventionally, callers have an address within the call. Functions of Python have none.
        let address = match frame.is_python() {
            true => Avma::new(0),
            false => frame.pc().wrapping_sub(u64::from(!frame.exact)),
        };
        let key = LocationKey {
            kind: LocationKind::of(frame),
            mapping: self.mappings.number(frame, address),
            address,
            lines: self.lines(frame),
        };
        let id = id(self.locations.insert_full(key).0);
        self.known.insert(frame.id(), id);
        id
    }

    /// A location that stands for something other than code.
    fn marker(&mut self, name: &str) -> u64 {
        let key = LocationKey {
            kind: LocationKind::Marker,
            mapping: None,
            address: Avma::new(0),
            lines: vec![self.line(Some(name), None, None)],
        };
        id(self.locations.insert_full(key).0)
    }

    /// Functions at an address, innermost first; empty if no name is known.
    fn lines(&mut self, frame: FrameRef<'_>) -> Vec<Line> {
        let own = frame.function();
        if own.is_none() && frame.inlined().len() == 0 {
            let name = || match frame.module() {
                Some(module) => format!("[{}]", module.basename()),
                None => NAMELESS.to_owned(),
            };
            return match self.names_all {
                true => vec![self.line(Some(&name()), None, None)],
                false => Vec::new(),
            };
        }
        let inlined = frame.inlined();
        let inlined = inlined.map(|inlined| (inlined.symbol, inlined.file, inlined.line));
        inlined
            .chain([(own, frame.file(), frame.line())])
            .map(|(name, file, line)| self.line(name, file, line))
            .collect()
    }

    fn line(&mut self, name: Option<&str>, file: Option<&str>, line: Option<u32>) -> Line {
        let key = FunctionKey {
            name: self.string(&printable(name.unwrap_or(NAMELESS))),
            filename: self.string(&printable(file.unwrap_or_default())),
        };
        Line {
            function_id: id(self.functions.insert_full(key).0),
            line: line.unwrap_or(0).into(),
        }
    }

    /// Kinds of locations, in the order of their messages.
    pub(super) fn kinds(&self) -> Vec<LocationKind> {
        self.locations.iter().map(|location| location.kind).collect()
    }

    /// The profile of all samples, with the values of the sample types in `types`, and the tables.
    pub(super) fn into_profile(self, types: &[usize]) -> Profile {
        let mut strings = self.strings;
        let functions: Vec<_> = self.functions.into_iter().collect();
        let locations: Vec<_> = self.locations.into_iter().collect();
        let resolved = resolved(&locations, &functions, self.mappings.len());
        let string = |text: &str| index(&mut strings, text);
        let (mapping, ids) = self.mappings.messages(self.program, &resolved, string);
        let location = |(number, key): (usize, LocationKey)| proto::Location {
            id: id(number),
            mapping_id: key.mapping.map_or(0, |mapping| ids[mapping]),
            address: key.address.get(),
            line: key.lines,
        };
        let function = |(number, key): (usize, &FunctionKey)| Function {
            id: id(number),
            name: key.name,
            system_name: key.name,
            filename: key.filename,
        };
        let sample = |(key, values): (SampleKey, Values)| Sample {
            location_id: key.locations,
            value: types.iter().map(|&number| signed(values[number])).collect(),
            label: key.labels,
        };
        let samples = self.samples.into_iter().zip(self.values);
        Profile {
            sample: samples.map(sample).collect(),
            mapping,
            location: locations.into_iter().enumerate().map(location).collect(),
            function: functions.iter().enumerate().map(function).collect(),
            string_table: strings.into_iter().collect(),
            ..Profile::default()
        }
    }
}

fn index(strings: &mut IndexSet<String>, text: &str) -> i64 {
    let known = strings.get_index_of(text);
    signed(known.unwrap_or_else(|| strings.insert_full(text.to_owned()).0) as u64)
}

/// Facts known of the locations in each mapping.
fn resolved(locations: &[LocationKey], functions: &[FunctionKey], mappings: usize) -> Vec<Resolved> {
    let mut all = vec![Resolved::default(); mappings];
    let has_file = |line: &Line| {
        let number = usize::try_from(line.function_id - 1);
        number.is_ok_and(|number| functions[number].filename != 0)
    };
    for LocationKey { mapping, lines, .. } in locations {
        let Some(resolved) = mapping.map(|number| &mut all[number]) else {
            continue;
        };
        resolved.functions |= !lines.is_empty();
        resolved.filenames |= lines.iter().any(has_file);
        resolved.line_numbers |= lines.iter().any(|line| line.line > 0);
        resolved.inline_frames |= lines.len() > 1;
    }
    all
}
