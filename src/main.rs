//! Reads the command line, runs, reports errors, decides the exit status.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use leak_report::render::printable;
use memleak::base::characters::shown;
use memleak::base::open_files;
use memleak::cli::settings::{self, ParseError, Parsed};
use memleak::cli::{self, Cli, Command, Config, McpSource, MessageArgs, TraceArgs};
use memleak::commands::mcp::Kept;
use memleak::commands::replay::ReportOptions;
use memleak::commands::top::Outcome;
use memleak::commands::{doctor, inspect, mcp, replay, targets, top, verdict, why};
use memleak::process::launch::{LaunchError, PASSED_ON, Relay, Relayed, Sender};
use memleak::session::Signals;
use memleak::session::TraceConfig;
use memleak::sinks::output::{self, standard};
use memleak::sinks::status::ClearingWriters;
use memleak::sinks::{Diagnostics, Sinks};
use memleak::{bpf, session};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Exit status when a check failed.
const WRONG: u8 = 1;
/// Exit status for wrong usage, or an error of the tool.
const FAILED: u8 = 2;
/// Exit status when ended by a signal: the signal's number is added, as shells do.
const KILLED: i32 = 128;

fn main() -> ExitCode {
    // A write beyond the file size limit is an error (EFBIG) then, and does not end memleak. Unlike SIG_IGN,
    // a handler is not inherited by programs that memleak executes.
    if !Relay::new().ignores(Signal::SIGXFSZ) {
        _ = signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::default());
    }
    let arguments: Vec<_> = env::args_os().collect();
    if let Some(color) = settings::wanted_color(&arguments) {
        color.choose();
    }
    let Parsed { cli, notes, yielded } = match settings::parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error),
    };
    cli.messages.color.choose();
    let diagnostics = Diagnostics::default();
    // The live view colours messages itself.
    let is_painted =
        !(cli.trace.live.live || matches!(cli.command, Some(Command::Live(_) | Command::Top(_))));
    // `doctor` traces for a moment: without -v, log only warnings of that. Its findings are its output.
    let is_quiet = matches!(cli.command, Some(Command::Doctor(_)));
    log(cli.messages.verbosity(is_quiet), &diagnostics, is_painted);
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    for origin in yielded {
        tracing::debug!("ignoring {origin}: it conflicts with the command line or with another setting");
    }
    match run(cli, &diagnostics) {
        Ok(status) => status,
        Err(error) if session::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let launch: Option<&LaunchError> = error.downcast_ref();
            let status = launch.map_or(FAILED, |launch| launch.status(FAILED));
            fail(&format!("{error:#}{}", remedy(&error)), status)
        }
    }
}

fn run(cli: Cli, diagnostics: &Diagnostics) -> anyhow::Result<ExitCode> {
    let (is_verbose, has_line) = (cli.messages.verbose > 0, cli.messages.quiet == 0);
    match cli.command {
        Some(Command::Table { files, verify: false }) => inspect::tables(&files, &mut standard::output()?)?,
        Some(Command::Table { files, verify: true }) => {
            let right = inspect::verify(&files, &mut standard::output()?)?;
            return Ok(ExitCode::from(if right { 0 } else { WRONG }));
        }
        Some(Command::Doctor(args)) => {
            let can_trace = doctor::run(&args.try_into()?, &mut standard::output()?)?;
            return Ok(ExitCode::from(if can_trace { 0 } else { FAILED }));
        }
        Some(Command::Report(args)) => {
            let mut options: ReportOptions = (*args).try_into()?;
            options.destination.is_verbose = is_verbose;
            return replay::report(&options).map(ExitCode::from);
        }
        Some(Command::Diff(args)) => replay::diff(&args.try_into()?)?,
        Some(Command::Trend(args)) => replay::trend(&args.try_into()?)?,
        Some(Command::Top(args)) => {
            return watch(&(*args).try_into()?, &cli.messages, diagnostics);
        }
        Some(Command::Verdict(args)) => {
            return verdict::run(&args.try_into()?, &mut standard::output()?).map(ExitCode::from);
        }
        Some(Command::Why(args)) => {
            if let Some(note) = args.check_stray_pid()? {
                tracing::info!("{note}");
            }
            return why_it_grows(&(*args).try_into()?).map(ExitCode::from);
        }
        Some(Command::Mcp(args)) => return answer_questions(args.try_into()?).map(ExitCode::from),
        Some(Command::Library(args)) => session::write_library(&args.output)?,
        Some(Command::Completions(args)) => cli::completions(&args, &mut standard::output()?)?,
        Some(Command::Man(args)) => cli::man(&args, &mut standard::output()?)?,
        None if cli.trace.dialects.ebpf => bpf::write_source(&mut standard::output()?)?,
        Some(Command::Live(args)) => return trace_by(args.live(), is_verbose, has_line, diagnostics),
        None => return trace_by(cli.trace, is_verbose, has_line, diagnostics),
    }
    Ok(ExitCode::SUCCESS)
}

/// Diagnoses a process until the end is requested by a signal.
fn why_it_grows(options: &why::Options) -> anyhow::Result<u8> {
    let signals = listen_to_signals(&TraceConfig::of_process(0), None)?;
    why::run(options, &signals, &mut standard::output()?)
}

/// Watches all processes. If the user chooses one, traces it as `memleak live -p PID` does.
fn watch(
    options: &top::Options,
    messages: &MessageArgs,
    diagnostics: &Diagnostics,
) -> anyhow::Result<ExitCode> {
    let stop = Arc::default();
    let relay = Relay::new();
    let mut registered = Vec::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SIGHUP stays ignored under nohup.
        if signal != Signal::SIGHUP || !relay.ignores(signal) {
            registered.push(signal_hook::flag::register(signal as i32, Arc::clone(&stop))?);
        }
    }
    let outcome = top::run(options, &stop, &diagnostics.messages);
    // A trace installs its own signal handlers.
    registered
        .into_iter()
        .for_each(|id| _ = signal_hook::low_level::unregister(id));
    let Outcome::Trace(found) = outcome? else {
        return Ok(ExitCode::SUCCESS);
    };
    let words = ["memleak", "live", "-p", &found.pid.to_string()].map(OsString::from);
    let parsed = settings::parse(words.into_iter().chain(messages.settings_words()))?;
    parsed.notes.iter().for_each(|note| tracing::warn!("{note}"));
    let Some(Command::Live(args)) = parsed.cli.command else {
        return Ok(ExitCode::FAILURE);
    };
    let mut config: Config = args.live().try_into()?;
    // Trace this very process, not a later one with the same pid.
    (config.trace.targets.pids, config.trace.targets.found) = (Vec::new(), vec![found]);
    trace(config, diagnostics, true).map(ExitCode::from)
}

/// Traces as the command line requests.
fn trace_by(
    args: TraceArgs,
    is_verbose: bool,
    has_line: bool,
    diagnostics: &Diagnostics,
) -> anyhow::Result<ExitCode> {
    if let Some(note) = args.check_stray_pids()? {
        tracing::info!("{note}");
    }
    let mut config: Config = args.try_into()?;
    config.sinks.destination.is_verbose = is_verbose;
    trace(config, diagnostics, has_line).map(ExitCode::from)
}

/// Answers a client's questions, about files or about a trace that ends with the client.
fn answer_questions(source: McpSource) -> anyhow::Result<u8> {
    let mut config = match source {
        McpSource::Files(files) => {
            let mut files = mcp::Files::open(&files)?;
            mcp::serve(&mut files, &mut io::stdin().lock(), &mut io::stdout().lock())?;
            return Ok(0);
        }
        McpSource::Trace(config) => config,
    };
    let signals = listen_to_signals(&config.trace, None)?;
    if let Some(options) = &config.select {
        targets::find(options, &signals.stop, &mut config.trace)?;
    }
    let mut reports = Kept::default();
    let (mut asked, stop) = (reports.clone(), Arc::clone(&signals.stop));
    let served = thread::Builder::new().name("mcp".to_owned()).spawn(move || {
        let served = mcp::serve(&mut asked, &mut io::stdin().lock(), &mut io::stdout().lock());
        stop.store(true, Ordering::Relaxed);
        served
    })?;
    let status = session::run(&config.trace, &signals, &mut reports)?;
    reports.end();
    // Questions can be asked after the process has ended, too.
    while !signals.stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
    if served.is_finished() {
        served.join().unwrap_or(Ok(()))?;
    }
    Ok(status)
}

fn trace(mut config: Config, diagnostics: &Diagnostics, has_line: bool) -> anyhow::Result<u8> {
    let is_restored = Arc::default();
    // With a view, a second signal ends at once only after the terminal is restored.
    let signals = listen_to_signals(&config.trace, config.sinks.live.map(|_| &is_restored))?;
    if config.sinks.ends_with_its_reader() {
        output::await_end_of_reader(Arc::clone(&signals.stop))?;
    }
    let open = |trace: &TraceConfig| Sinks::open(&config.sinks, trace, &signals, &is_restored, diagnostics);
    // Open outputs before waiting for processes, so that one that cannot be written is reported at once. A
    // live view opens later, as it shows the processes that were found.
    let waits = config.select.as_ref().is_some_and(|options| options.waits);
    let opens_first = waits && config.sinks.live.is_none();
    let opened = opens_first.then(|| open(&config.trace)).transpose()?;
    if let Some(options) = &config.select
        && let Err(error) = targets::find(options, &signals.stop, &mut config.trace)
    {
        return match opened {
            Some(sinks) => sinks.finish(Err(error)),
            None => Err(error),
        };
    }
    let mut sinks = opened.map_or_else(|| open(&config.trace), Ok)?;
    // The status line would garble call lines and the output of a started program, which can come at any
    // time.
    let is_quiet = config.trace.targets.program.is_empty() && config.trace.shown.calls.is_none();
    if has_line && is_quiet && config.sinks.live.is_none() {
        diagnostics.line.begin();
    }
    let status = session::run(&config.trace, &signals, &mut sinks);
    sinks.finish(status)
}

/// Handles signals from now on. Once `at_once` is set, a further signal that requests the end exits
/// immediately. By default, `at_once` is the stop flag, which the first such signal sets.
fn listen_to_signals(config: &TraceConfig, at_once: Option<&Arc<AtomicBool>>) -> io::Result<Signals> {
    let signals = Signals {
        relay: Arc::new(Relay::new()),
        ..Signals::default()
    };
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&signals.mark))?;
    let at_once = Arc::clone(at_once.unwrap_or(&signals.stop));
    if !config.targets.program.is_empty() {
        pass_signals_on(&signals, at_once)?;
        return Ok(signals);
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SIGHUP stays ignored under nohup. An ignored SIGINT is handled nevertheless: shells ignore it in
        // everything that a script starts with `&`.
        if signal == Signal::SIGHUP && signals.relay.ignores(signal) {
            continue;
        }
        let number = signal as i32;
        // A closing terminal sends SIGHUP twice, from its shell and from the kernel: the second one must not
        // end at once.
        if signal != Signal::SIGHUP {
            // Exiting detaches: the kernel removes the probes of a process that exits.
            signal_hook::flag::register_conditional_shutdown(number, KILLED + number, Arc::clone(&at_once))?;
        }
        signal_hook::flag::register(number, Arc::clone(&signals.stop))?;
    }
    Ok(signals)
}

/// Forwards signals to the started program, which they are meant for. memleak ends when the program does.
fn pass_signals_on(signals: &Signals, at_once: Arc<AtomicBool>) -> io::Result<()> {
    let mut received = SignalsInfo::<WithOrigin>::new(PASSED_ON.map(|signal| signal as i32))?;
    let (relay, stop) = (Arc::clone(&signals.relay), Arc::clone(&signals.stop));
    let listen = move || {
        for origin in &mut received {
            let Ok(signal) = Signal::try_from(origin.signal) else {
                continue;
            };
            match relay.pass_on(signal, sender(&origin)) {
                Relayed::Delivered => tracing::debug!("the program got {signal}"),
                Relayed::Refused(error) => tracing::warn!("cannot pass {signal} on to the program: {error}"),
                // Exit as if the signal were not handled, but only after the terminal is restored.
                Relayed::NotStarted => {
                    stop.store(true, Ordering::Relaxed);
                    await_set(&at_once);
                    process::exit(KILLED + origin.signal);
                }
                // The last report is being made. A closed terminal sends SIGHUP twice.
                Relayed::Ended if at_once.load(Ordering::Relaxed) && signal != Signal::SIGHUP => {
                    process::exit(KILLED + origin.signal)
                }
                Relayed::Ended => stop.store(true, Ordering::Relaxed),
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(())
}

/// Waits until a flag is set, at most 2 s.
fn await_set(flag: &AtomicBool) {
    let began = Instant::now();
    while !flag.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(10));
    }
}

fn sender(origin: &Origin) -> Sender {
    if origin.cause == Cause::Kernel {
        Sender::Terminal
    } else {
        Sender::Process(origin.process.map(|process| process.pid))
    }
}

/// Formats progress and warnings, one per line.
struct Line {
    is_painted: bool,
}

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
        let (kind, style) = match level {
            Level::ERROR => ("error: ", BAD),
            Level::WARN => ("warning: ", DOUBTFUL),
            _ => ("", Style::new()),
        };
        let style = if self.is_painted {
            painted(style)
        } else {
            Style::new()
        };
        // Messages contain names of processes and files, which must not begin lines or set colours.
        let mut message = String::new();
        let fields = context.field_format();
        fields.format_fields(Writer::new(&mut message), event)?;
        writeln!(
            writer,
            "memleak: {style}{kind}{style:#}{}",
            shown(&printable(&message))
        )
    }
}

const BAD: Style = AnsiColor::Red.on_default().bold();
const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();

/// The style if standard error has colours; else none.
fn painted(style: Style) -> Style {
    match AutoStream::choice(&io::stderr()) == ColorChoice::Never {
        true => Style::new(),
        false => style,
    }
}

fn log(wanted: Targets, diagnostics: &Diagnostics, is_painted: bool) {
    let writer = ClearingWriters::new(diagnostics.line.clone(), diagnostics.messages.clone());
    tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .with_writer(writer)
        .event_format(Line { is_painted })
        .finish()
        .with(wanted)
        .init();
    bpf::listen();
}

/// Prints help and version where they were requested, and a usage error in one line.
fn refuse(error: &ParseError) -> ExitCode {
    if let ParseError::CommandLine(help) = error
        && matches!(help.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
    {
        return match print(help) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&error.to_string(), FAILED),
            Ok(()) | Err(_) => ExitCode::SUCCESS,
        };
    }
    let hint = match matches!(error, ParseError::CommandLine(_)) {
        true => " (memleak --help lists everything)",
        false => "",
    };
    fail(&format!("{error}{hint}"), FAILED)
}

/// Remedy to append to an error that any command can meet (too many open files); empty for other errors.
fn remedy(error: &anyhow::Error) -> String {
    // Errors of libbpf-rs have the number in their text only.
    let too_many = format!("(os error {})", Errno::EMFILE as i32);
    match format!("{error:#}").contains(&too_many) {
        true => open_files::remedy(),
        false => String::new(),
    }
}

/// Prints help with colours where they are wanted, and characters of the user's locale.
fn print(help: &clap::Error) -> io::Result<()> {
    let text = help.render().ansi().to_string();
    let out = standard::output().map_err(io::Error::other)?;
    AutoStream::auto(out).write_all(shown(&text).as_bytes())
}

fn fail(line: &str, status: u8) -> ExitCode {
    let style = painted(BAD);
    // Nothing can be reported if standard error is gone too.
    _ = writeln!(
        io::stderr(),
        "{style}memleak:{style:#} {}",
        shown(&printable(line))
    );
    ExitCode::from(status)
}
