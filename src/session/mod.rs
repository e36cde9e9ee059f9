//! Runs a trace of processes or of the kernel from start to end.

mod accounting;
mod ages;
mod announcements;
mod attach;
mod attachments;
mod attempts;
mod background;
mod beginnings;
mod breakdown;
mod bystanders;
mod calls;
mod capacity;
mod classes;
mod code;
mod code_over_time;
mod config;
mod copies;
mod debuggers;
mod deferred;
mod describe;
mod generated;
mod held;
mod hook;
mod kernel_mode;
mod kernel_report;
mod lack;
mod lifecycle;
mod live;
mod members;
mod membership;
mod memory;
mod not_announced;
mod overhead;
mod peak;
mod phases;
mod pinned;
mod preload;
mod prepared;
mod probes;
mod process;
mod process_mode;
mod program;
mod provider;
mod python;
mod python_frames;
mod python_names;
mod reading;
mod reload;
mod reports;
mod roster;
mod schedule;
mod sharers;
mod signals;
mod since;
mod stops;
mod tables;
#[cfg(test)]
mod tests;
pub mod triggers;
mod unreadable;
mod verdict;
mod vitals;
mod ways;

use std::io;

pub use attempts::{Storages, storages};
pub use config::{
    CountConfig, Counted, KernelConfig, LimitConfig, MaxOverhead, ScheduleConfig, ShownConfig, SourceChoice,
    StackConfig, TargetConfig, TraceConfig, TuningConfig, VerdictSettings, View,
};
pub(crate) use describe::time_of_day;
use leak_report::render::ReportSink;
pub use preload::write_library;
pub use process_mode::Session;
pub use signals::Signals;
pub use verdict::{InUse, InUseError, LostBlock, judge_in_use};

/// Traces as `config` says and sends reports to `reports`, until all are made, `signals` request the end, or
/// the target ends. Returns the exit status of the program that it started if that has ended, else 0.
///
/// # Errors
///
/// Names what failed, on which object, and the remedy. Nothing stays attached.
pub fn run(config: &TraceConfig, signals: &Signals, reports: &mut dyn ReportSink) -> anyhow::Result<u8> {
    match config.count.counted {
        Counted::Kernel(kernel) => kernel_mode::run(config, kernel, signals, reports).map(|()| 0),
        Counted::Blocks | Counted::Mappings | Counted::Pages | Counted::Takes(_) => {
            process_mode::run(config, signals, reports)
        }
    }
}

/// Returns whether an error means that the reader of our output is gone, which is not a failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
