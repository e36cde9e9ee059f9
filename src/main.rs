//! Reads the command line, runs, reports errors, decides the exit status.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use clap::error::ErrorKind;
use memleak::cli::{Cli, Command};
use memleak::config::Config;
use memleak::launch::LaunchError;
use memleak::output::Output;
use memleak::recording::Recorder;
use memleak::report::{Call, Consumer, Report, Stage};
use memleak::session::Signals;
use memleak::{bpf, doctor, inspect, replay, session};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// What was to be checked is wrong.
const WRONG: u8 = 1;
/// Wrong usage, or an error of the tool.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    log_to_stderr(cli.trace.verbose);
    match run(cli) {
        Ok(status) => status,
        Err(error) if session::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let launch: Option<&LaunchError> = error.downcast_ref();
            let status = launch.map_or(FAILED, |launch| launch.status(FAILED));
            fail(&format!("{error:#}"), status)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    match cli.command {
        Some(Command::Table { files, verify: false }) => inspect::tables(&files, &mut out)?,
        Some(Command::Table { files, verify: true }) => {
            let right = inspect::verify(&files, &mut out)?;
            return Ok(ExitCode::from(if right { 0 } else { WRONG }));
        }
        Some(Command::Doctor(args)) => {
            let can_trace = doctor::run(args.try_into()?, &mut out)?;
            return Ok(ExitCode::from(if can_trace { 0 } else { FAILED }));
        }
        Some(Command::Report(args)) => replay::report(&args.try_into()?)?,
        Some(Command::Diff(args)) => replay::diff(&args.try_into()?)?,
        Some(Command::Trend(args)) => replay::trend(&args.try_into()?)?,
        None if cli.trace.dialects.ebpf => bpf::write_source(&mut out)?,
        None => {
            let config = Config::try_from(cli.trace)?;
            return trace(&config).map(ExitCode::from);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What was reported before an error is still written.
fn trace(config: &Config) -> anyhow::Result<u8> {
    let mut output = Output::open(config.format, &config.destination)?;
    let mut recorder = config.recording.as_ref().map(Recorder::create).transpose()?;
    let mut reports = Both {
        output: &mut output,
        recorder: recorder.as_mut(),
    };
    let status = session::run(config, &listen_to_signals()?, &mut reports);
    let recorded = recorder.map_or(Ok(()), Recorder::finish);
    output.finish()?;
    let status = status?;
    recorded?;
    Ok(status)
}

/// Reports are recorded first: what reads the output may be gone.
struct Both<'a> {
    output: &'a mut Output,
    recorder: Option<&'a mut Recorder>,
}

impl Consumer for Both<'_> {
    fn take(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.take(report)?;
        }
        self.output.take(report)
    }

    fn reach(&mut self, stage: &Stage<'_>) -> anyhow::Result<()> {
        self.output.reach(stage)
    }

    fn tell(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        self.output.tell(calls)
    }
}

/// What the user says by signals from now on.
fn listen_to_signals() -> io::Result<Signals> {
    let signals = Signals::default();
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        // A second signal ends at once; the kernel detaches what its process held.
        signal_hook::flag::register_conditional_shutdown(signal, FAILED.into(), Arc::clone(&signals.stop))?;
        signal_hook::flag::register(signal, Arc::clone(&signals.stop))?;
    }
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&signals.mark))?;
    Ok(signals)
}

/// Progress and warnings, a line each.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let kind = match level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        write!(writer, "memleak: {kind}")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "memleak=info",
        1 => "memleak=debug",
        _ => "trace",
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(io::stderr)
        .event_format(Line)
        .init();
    let print = |_: libbpf_rs::PrintLevel, message: String| tracing::trace!("{}", message.trim_end());
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, print)));
}

/// Help and version go where they were asked for; a mistake is one line.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return if error.print().is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(FAILED)
        };
    }
    let text = error.render().to_string();
    let first = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let what = first.strip_prefix("error: ").unwrap_or(&first);
    fail(&format!("{what} (memleak --help lists everything)"), FAILED)
}

fn fail(line: &str, status: u8) -> ExitCode {
    // Nothing is left to tell if standard error is gone too.
    _ = writeln!(io::stderr(), "memleak: {line}");
    ExitCode::from(status)
}
