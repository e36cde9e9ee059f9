//! Arguments of the commands that read recordings.

use std::ffi::OsString;
use std::num::NonZeroI64;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::config::ConfigError;
use super::gate::GateArgs;
use super::names::NameArgs;
use super::output::{OutputArgs, PlaceArgs, format_of};
use super::quantity::{DirectionArgs, QuantityArgs};
use super::record::RecordArgs;
use crate::commands::replay::{
    DifferenceFormat, DifferenceOptions, ReportOptions, ReportSelection, Source, TrendOptions,
};
use crate::sinks::output::Destination;
use leak_report::model::Measure;
use leak_report::model::leak::Order;
use leak_report::render::Format;

/// Arguments of `memleak report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Recording to show; - is standard input.
    pub file: PathBuf,
    /// Show this report, counted from 1, or backwards from -1; default: the last (html: all).
    #[arg(long, value_name = "N", allow_hyphen_values = true, conflicts_with_all = ["all", "list"])]
    pub at: Option<NonZeroI64>,
    /// Show all reports, one after another.
    #[arg(long, conflicts_with = "list")]
    pub all: bool,
    /// Show a line for each report.
    #[arg(long, conflicts_with_all = ["format", "summary", "sort", "top", "record", "anonymize"])]
    pub list: bool,
    /// Show totals and the five largest sources: --format summary.
    #[arg(long, conflicts_with = "format")]
    pub summary: bool,
    /// Form and destination of reports.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Number that flame graphs show.
    #[command(flatten)]
    pub quantity: QuantityArgs,
    /// Direction of flame graphs.
    #[command(flatten)]
    pub direction: DirectionArgs,
    /// Stacks to show in text reports, and in JSON if given; default: as in the trace that was recorded.
    #[arg(short = 'T', long, value_name = "N")]
    pub top: Option<usize>,
    /// Rank stacks by this; default: as in the trace that was recorded.
    #[arg(long, value_enum, value_name = "ORDER")]
    pub sort: Option<Order>,
    /// Style of function names.
    #[command(flatten)]
    pub names: NameArgs,
    /// Another recording to put reports into.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Conditions that the last of the reports is checked against.
    #[command(flatten)]
    pub gate: GateArgs,
}

/// Arguments of `memleak diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Earlier recording (its last report), or FILE:N for report N, counted from 1, or backwards from -1.
    pub before: OsString,
    /// Later recording, or FILE:N; can be the same file.
    pub after: OsString,
    /// Format of the difference; default: by the extension of the --output file, else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<DifferenceArg>,
    /// Number that flame graphs show.
    #[command(flatten)]
    pub quantity: QuantityArgs,
    /// Destination of the output.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Sites to show in text, and in JSON if given: N that grew most, and N that shrank most.
    ///
    /// [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    pub top: Option<usize>,
    /// Style of function names.
    #[command(flatten)]
    pub names: NameArgs,
}

/// Form of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DifferenceArg {
    /// For people.
    Text,
    /// One object.
    Json,
    /// One line per stack, root first, with its amounts before and after.
    Folded,
    /// A flame graph of the later report: red where there is more than before, blue where there is less.
    Svg,
    /// The later report, for `pprof -base` with the earlier one.
    Pprof,
}

/// Arguments of `memleak trend`.
#[derive(Debug, Args)]
pub struct TrendArgs {
    /// One recording, for all its reports; or several, for the last report of each, or FILE:N for report N.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<OsString>,
    /// Format of the trend; default: by the extension of the --output file, else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<TrendArg>,
    /// Destination of the output.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Sites to show in text, and in JSON if given: those that grow fastest.
    ///
    /// [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    pub top: Option<usize>,
    /// Style of function names.
    #[command(flatten)]
    pub names: NameArgs,
}

/// Form of a trend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrendArg {
    /// For people.
    Text,
    /// One object.
    Json,
}

impl TryFrom<ReportArgs> for ReportOptions {
    type Error = ConfigError;

    fn try_from(args: ReportArgs) -> Result<Self, ConfigError> {
        let records = args.record.record.is_some();
        let asked_for_reports = [
            ("--format", args.output.format.is_some()),
            ("--summary", args.summary),
            ("--output", args.output.place.output.is_some()),
        ];
        let asked = asked_for_reports.into_iter().find(|&(_, asked)| records && asked);
        if let Some((flag, _)) = asked {
            return Err(ConfigError::CopiedOnly(flag));
        }
        let mut destination = args.output.place.check(records || args.gate.writes())?;
        destination.most_stacks = args.top;
        let gate = args.gate.check(destination.overwrite)?;
        let without_names = [
            ("--list", args.list),
            ("--record", records),
            ("--anonymize", args.record.anonymize),
        ];
        let without = without_names.into_iter().find(|&(_, given)| given);
        if let Some((flag, _)) = without.filter(|_| gate.is_enabled()) {
            return Err(ConfigError::GateWithoutNames(flag));
        }
        let asked = match args.summary || args.list {
            true => Some(Format::Summary),
            false => args.output.format,
        };
        let format = format_of(asked, &destination)?;
        let destination = Destination {
            source_lines: args.output.check_source_lines(format)?,
            ..destination
        };
        let has_quantity = args.quantity.measure.is_some() || args.quantity.unit.is_some();
        let quantity = args.quantity.check(format)?;
        Ok(Self {
            quantity: has_quantity.then_some(quantity),
            direction: args.direction.check(format)?,
            which: match (args.at, args.all) {
                (Some(number), _) => ReportSelection::One(number),
                (None, true) => ReportSelection::All,
                (None, false) => ReportSelection::Last,
            },
            list: args.list,
            format,
            record: args.record.check(&destination)?,
            destination,
            top: args.top,
            sort: args.sort,
            names: args.names.into(),
            anonymize: args.record.anonymize,
            gate,
            file: args.file,
        })
    }
}

/// Form with the name of the format that the file's extension selects. `output` and `all`, the names of its
/// forms, are for the error message.
fn form<T: ValueEnum>(
    destination: &Destination,
    output: &'static str,
    all: &'static str,
) -> Result<T, ConfigError> {
    let format = format_of(None, destination)?;
    let form = T::from_str(format.name(), false);
    form.map_err(|_| ConfigError::NoSuchForm(format.name().to_owned(), output, all))
}

/// Report format with the name of a form.
fn format_of_form(form: &impl ValueEnum) -> Option<Format> {
    Format::from_str(form.to_possible_value()?.get_name(), false).ok()
}

impl TryFrom<DiffArgs> for DifferenceOptions {
    type Error = ConfigError;

    fn try_from(args: DiffArgs) -> Result<Self, ConfigError> {
        let destination = args.place.check(false)?;
        let format = match args.format {
            Some(format) => format,
            None => {
                let all = "text, json, folded, svg or pprof";
                form(&destination, "a difference", all)?
            }
        };
        let quantity = args
            .quantity
            .check(format_of_form(&format).unwrap_or(Format::Text))?;
        if quantity.measure == Measure::Growth {
            return Err(ConfigError::GrowthOfGrowth);
        }
        Ok(Self {
            before: Source::parse(&args.before),
            after: Source::parse(&args.after),
            format: match format {
                DifferenceArg::Text => DifferenceFormat::Text,
                DifferenceArg::Json => DifferenceFormat::Json,
                DifferenceArg::Folded => DifferenceFormat::Folded(quantity),
                DifferenceArg::Svg => DifferenceFormat::Svg(quantity),
                DifferenceArg::Pprof => DifferenceFormat::Pprof,
            },
            destination,
            top: args.top,
            names: args.names.into(),
        })
    }
}

impl TryFrom<TrendArgs> for TrendOptions {
    type Error = ConfigError;

    fn try_from(args: TrendArgs) -> Result<Self, ConfigError> {
        let destination = args.place.check(false)?;
        let format = match args.format {
            Some(format) => format,
            None => form(&destination, "a trend", "text or json")?,
        };
        Ok(Self {
            sources: args.files.iter().map(|file| Source::parse(file)).collect(),
            json: format == TrendArg::Json,
            destination,
            top: args.top,
            names: args.names.into(),
        })
    }
}
