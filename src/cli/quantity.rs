//! Flags for the number that flame graphs show of each stack.

use clap::Args;

use super::config::ConfigError;
use leak_report::model::{Direction, Measure, Quantity, Unit};
use leak_report::render::Format;

/// Flags of formats that show one number for each stack.
#[derive(Debug, Args)]
pub struct QuantityArgs {
    /// Number to show for each stack in folded, svg and speedscope, and initially in html.
    ///
    /// [default: outstanding]
    #[arg(long, value_enum, value_name = "MEASURE")]
    pub measure: Option<Measure>,
    /// Unit of the number that --measure selects.
    ///
    /// [default: bytes]
    #[arg(long, value_enum, value_name = "UNIT")]
    pub unit: Option<Unit>,
}

impl QuantityArgs {
    /// Checks the flags for reports in `format`.
    pub(super) fn check(&self, format: Format) -> Result<Quantity, ConfigError> {
        let given = [
            ("--measure", self.measure.is_some()),
            ("--unit", self.unit.is_some()),
        ];
        let unheard = given
            .into_iter()
            .find(|&(_, given)| given && !format.has_quantity());
        if let Some((flag, _)) = unheard {
            let format = format.name();
            return Err(ConfigError::NoQuantity { flag, format });
        }
        Ok(Quantity {
            measure: self.measure.unwrap_or_default(),
            unit: self.unit.unwrap_or_default(),
        })
    }
}

/// Flag for the direction of flame graphs.
#[derive(Debug, Args)]
pub struct DirectionArgs {
    /// Build flame graphs from the allocating functions, with their callers above them.
    ///
    /// For folded, svg and speedscope, and initially for html. All allocations of a function are then in one
    /// place, whatever called it.
    #[arg(long)]
    pub reverse: bool,
}

impl DirectionArgs {
    /// Checks the flag for reports in `format`.
    pub(super) fn check(&self, format: Format) -> Result<Direction, ConfigError> {
        let (flag, name) = ("--reverse", format.name());
        match (self.reverse, format.has_quantity()) {
            (false, _) => Ok(Direction::Callers),
            (true, true) => Ok(Direction::Allocating),
            (true, false) => Err(ConfigError::NoQuantity { flag, format: name }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// Flame graphs can be reversed, and nothing else can.
    #[test]
    fn directions() {
        let cli = Cli::try_parse_from(["memleak", "-p", "1", "--reverse"]).expect("it parses");
        let direction = |format| cli.trace.direction.check(format);
        for format in [Format::Folded, Format::Svg, Format::Speedscope, Format::Html] {
            assert_eq!(direction(format), Ok(Direction::Allocating));
        }
        for format in [Format::Text, Format::Json, Format::Pprof] {
            let error = direction(format).expect_err("refused").to_string();
            assert!(
                error.contains("--reverse") && error.contains(format.name()),
                "{error}"
            );
        }
    }

    fn quantity(format: Format, arguments: &str) -> Result<Quantity, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.quantity.check(format)
    }

    /// The default is outstanding bytes; flags are refused where the format does not use them.
    #[test]
    fn quantities() {
        let quantity_of = |measure, unit| Ok(Quantity { measure, unit });
        for (arguments, expected) in [
            ("", quantity_of(Measure::Outstanding, Unit::Bytes)),
            ("--unit blocks", quantity_of(Measure::Outstanding, Unit::Blocks)),
            (
                "--measure allocated",
                quantity_of(Measure::Allocated, Unit::Bytes),
            ),
            (
                "--measure definitely-lost",
                quantity_of(Measure::DefinitelyLost, Unit::Bytes),
            ),
            (
                "--measure growth --unit bytes",
                quantity_of(Measure::Growth, Unit::Bytes),
            ),
        ] {
            for format in [Format::Folded, Format::Svg, Format::Speedscope, Format::Html] {
                assert_eq!(quantity(format, arguments), expected, "{arguments}");
            }
        }
        assert_eq!(quantity(Format::Json, ""), Ok(Quantity::default()));
        for (format, arguments, flag) in [
            (Format::Text, "--measure outstanding", "--measure"),
            (Format::Pprof, "--unit blocks", "--unit"),
        ] {
            let error = quantity(format, arguments).expect_err("refused").to_string();
            assert!(error.contains(flag) && error.contains(format.name()), "{error}");
        }
    }
}
