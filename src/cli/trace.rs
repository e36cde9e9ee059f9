//! Conversion of the flags of a trace to its settings, in the order in which conflicts are reported.

use std::ffi::OsString;

use super::config::{non_zero, parse_count, parse_period, parse_table_memory};
use super::targets::Targets;
use super::triggers::Subject;
use super::{Config, ConfigError, Switch, TraceArgs};
use crate::allocator::Selection;
use crate::bpf::AttachPath;
use crate::commands::replay::DEFAULT_TOP;
use crate::process::launch::Streams;
use crate::session::{
    CountConfig, Counted, LimitConfig, ScheduleConfig, ShownConfig, SourceChoice, StackConfig, TargetConfig,
    TraceConfig, TuningConfig, View,
};
use crate::sinks::output::Destination;
use crate::sinks::{LiveConfig, SinkConfig, gate, recording};
use leak_report::model::{Measure, Order, Quantity};
use leak_report::render::{CallFormat, Format, Reports};

/// Processes or the program to trace; neither for the kernel's own allocations.
struct Given {
    targets: Targets,
    program: Vec<OsString>,
}

impl Given {
    fn has_targets(&self) -> bool {
        !self.targets.pids.is_empty() || self.targets.select.is_some()
    }

    fn is_process(&self) -> bool {
        self.has_targets() || !self.program.is_empty()
    }

    fn subject(&self) -> Subject {
        match (self.is_process(), &self.program[..]) {
            (false, _) => Subject::Kernel,
            (true, []) => Subject::Processes,
            (true, [_, ..]) => Subject::Program,
        }
    }
}

/// Reports, and their destinations.
struct Reported {
    format: Format,
    destination: Destination,
    quantity: Quantity,
    recording: Option<recording::Settings>,
    gate: gate::Settings,
    calls: Option<CallFormat>,
    live: Option<LiveConfig>,
}

impl Reported {
    fn has_reports(&self) -> bool {
        self.calls.is_none_or(|calls| calls.reports != Reports::None)
    }
}

impl TryFrom<TraceArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: TraceArgs) -> Result<Self, ConfigError> {
        let given = args.given()?;
        let reported = args.reported()?;
        let count = args.count(&given)?;
        let schedule = args.schedule(&given, &reported, count.counted)?;
        let shown = args.shown(&reported, count.counted)?;
        let stacks = StackConfig {
            walk: args.unwind,
            python: args.python == Switch::On,
            debuginfod: args.debuginfod.check()?,
        };
        let limits = args.limits(&given.targets)?;
        let targets = args.targets(&given, &reported);
        let has_reports = reported.has_reports();
        let trace = TraceConfig {
            targets,
            stacks,
            limits,
            schedule,
            shown,
            tuning: TuningConfig {
                attach: args
                    .attach
                    .map_or_else(|| AttachPath::ALL.to_vec(), |way| vec![way]),
                fast_paths: (&args.fast_paths).into(),
                first_instructions: args.fast_paths.probe_first_instructions,
                broken: args.break_program,
            },
            count: CountConfig {
                allocators: args.allocators.try_into()?,
                ..count
            },
        };
        let sinks = SinkConfig {
            format: reported.format,
            destination: reported.destination,
            recording: reported.recording,
            export: args.export.check(has_reports)?,
            gate: reported.gate,
            live: reported.live,
        };
        Ok(Self {
            trace,
            select: given.targets.select,
            sinks,
        })
    }
}

impl TraceArgs {
    fn given(&self) -> Result<Given, ConfigError> {
        let given = Given {
            program: self.start.words()?,
            targets: self.targets.check(&self.pid)?,
        };
        match given.has_targets() && !given.program.is_empty() {
            true => Err(ConfigError::TwoTargets),
            false => Ok(given),
        }
    }

    fn reported(&self) -> Result<Reported, ConfigError> {
        let records = self.record.record.is_some() || self.gate.writes();
        let (format, mut destination) = self.output.check(records)?;
        let quantity = self.quantity.check(format)?;
        destination.most_stacks = self.top;
        let recording = self.record.check_for_trace(&destination)?;
        let gate = self.gate.check(destination.overwrite)?;
        let calls = self.dialects.calls(format)?;
        let has_verdict = self.view.verdict.is_some();
        if let Some(condition) = gate.about_verdict().filter(|_| !has_verdict) {
            return Err(ConfigError::NoVerdict(condition.to_string()));
        }
        if let Some(condition) = gate.about_diagnosis() {
            return Err(ConfigError::OnlyOfDiagnoses(condition.to_string()));
        }
        if quantity.measure == Measure::DefinitelyLost && !has_verdict {
            return Err(ConfigError::NotJudged);
        }
        let mut reported = Reported {
            format,
            destination,
            quantity,
            recording,
            gate,
            calls,
            live: None,
        };
        if reported.gate.is_enabled() && !reported.has_reports() {
            return Err(ConfigError::NoReports);
        }
        reported.live = self.live.check(&self.output, calls.is_some())?;
        Ok(reported)
    }

    /// Flags that count something else than blocks, each paired with true if it is given.
    fn not_of_blocks(&self) -> [(&'static str, bool); 2] {
        [("--mmap", self.mmap), ("--faults", self.faults)]
    }

    /// Flags about the functions of allocators, each paired with true if it is given.
    fn of_allocators(&self) -> [(&'static str, bool); 5] {
        let [mappings, faults] = self.not_of_blocks();
        [
            mappings,
            faults,
            ("-O", !self.allocators.objects.is_empty()),
            ("-S", !self.allocators.prefixes.is_empty()),
            ("--alloc", !self.allocators.functions.is_empty()),
        ]
    }

    /// Kind of memory to count, and the part to record; allocators are selected later.
    fn count(&self, given: &Given) -> Result<CountConfig, ConfigError> {
        let mut selected = self.selection.check()?;
        if self.start.preload {
            selected.preload(!given.program.is_empty())?;
        }
        let of_allocators = self.of_allocators();
        selected.check_source(of_allocators)?;
        let of_processes = [
            ("--follow-fork", self.follow_fork),
            ("--ignore-translators", self.ignore_translators),
            ("--table-memory", self.table_memory.is_some()),
            ("--source", selected.source != SourceChoice::Auto),
            ("--max-overhead", selected.max_overhead.is_some()),
            ("--debuginfod", self.debuginfod.debuginfod),
            ("--verdict", self.view.verdict.is_some()),
            ("--classes", self.view.classes),
            ("--pinned", self.view.pinned),
            ("--sort pinned", self.view.sort == Some(Order::Pinned)),
            ("--measure pinned", self.quantity.measure == Some(Measure::Pinned)),
        ];
        let of_processes = [&of_processes[..], &of_allocators].concat();
        let counted = match self.kernel.check(given.is_process(), &of_processes)? {
            Some(kernel) => Counted::Kernel(kernel),
            None if self.mmap => Counted::Mappings,
            None if self.faults => Counted::Pages,
            None => Counted::Blocks,
        };
        Ok(CountConfig {
            counted,
            allocators: Selection::default(),
            source: selected.source,
            sampling: selected.sampling,
            max_overhead: selected.max_overhead,
            sizes: selected.sizes,
        })
    }

    fn schedule(
        &self,
        given: &Given,
        reported: &Reported,
        counted: Counted,
    ) -> Result<ScheduleConfig, ConfigError> {
        let is_often = reported.gate.is_about_growth() || reported.live.is_some() || self.triggers.reports();
        let interval = self.interval.as_deref().map_or_else(
            || Ok(TraceConfig::default_interval(is_often)),
            |text| parse_period("INTERVAL", text),
        )?;
        let each = reported.calls.is_none_or(|calls| calls.reports == Reports::Each);
        let others = [("--live", reported.live.is_some()), ("-t", !each)];
        let by_faults = counted == Counted::Pages;
        let triggers = self
            .triggers
            .check(given.subject(), by_faults, first_given(&others))?;
        let duration = self.duration.as_deref();
        Ok(ScheduleConfig {
            start_when: triggers.start_when,
            interval,
            report_when: triggers.report_when,
            count: self.count.as_deref().map(parse_count).transpose()?,
            duration: duration
                .map(|text| parse_period("--duration", text))
                .transpose()?,
        })
    }

    fn shown(&self, reported: &Reported, counted: Counted) -> Result<ShownConfig, ConfigError> {
        let quantity = reported.quantity;
        let wants_peak = quantity.measure == Measure::Peak || self.view.sort == Some(Order::Peak);
        if wants_peak && counted != Counted::Blocks {
            return Err(ConfigError::NoPeak);
        }
        let no_blocks = first_given(&self.not_of_blocks());
        let pinned =
            self.view.pinned || quantity.measure == Measure::Pinned || self.view.sort == Some(Order::Pinned);
        let not_read = no_blocks.or(self.view.combined_only.then_some("--combined-only"));
        if let Some(flag) = not_read.filter(|_| pinned) {
            return Err(ConfigError::NoPinned(flag));
        }
        let view = self.view.check(reported.format, no_blocks)?;
        Ok(ShownConfig {
            top: self.top.unwrap_or(DEFAULT_TOP),
            view: View {
                quantity,
                direction: self.direction.check(reported.format)?,
                pinned,
                ..view
            },
            calls: reported.calls,
        })
    }

    fn limits(&self, targets: &Targets) -> Result<LimitConfig, ConfigError> {
        let capacity = |flag, given: Option<u32>| given.map(|given| non_zero(flag, given)).transpose();
        Ok(LimitConfig {
            processes: targets.max_processes,
            blocks: capacity("--max-blocks", self.max_blocks)?,
            stacks: capacity("--stack-storage-size", self.stack_storage_size)?,
            table_memory: self.table_memory.as_deref().map(parse_table_memory).transpose()?,
        })
    }

    fn targets(&self, given: &Given, reported: &Reported) -> TargetConfig {
        let select = given.targets.select.as_ref();
        TargetConfig {
            pids: given.targets.pids.clone(),
            found: Vec::new(),
            members: select.map(|select| select.selectors.clone()),
            waits: select.is_some_and(|select| select.waits),
            program: given.program.clone(),
            preload: self.start.preload,
            // The live view draws on the terminal.
            streams: match reported.live {
                None => Streams::Inherited,
                Some(_) => Streams::InheritedWithoutTerminal,
            },
            follow_fork: self.follow_fork,
            ignores_translators: self.ignore_translators,
        }
    }
}

/// The first of some flags that is given.
fn first_given(flags: &[(&'static str, bool)]) -> Option<&'static str> {
    flags
        .iter()
        .find(|(_, is_given)| *is_given)
        .map(|(flag, _)| *flag)
}
