//! Reasons for reports of a trace that makes them by conditions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::size;

/// Reason for a report of a trace that makes them by conditions (`--report-when`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Conditions became true.
    Conditions(Vec<Reached>),
    /// The trace ended.
    End,
}

impl Reason {
    /// Conditions that became true.
    pub fn reached(&self) -> &[Reached] {
        match self {
            Self::Conditions(reached) => reached,
            Self::End => &[],
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conditions(reached) => {
                let texts: Vec<_> = reached.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Self::End => f.write_str("the trace ended"),
        }
    }
}

/// Condition that became true, with the value at that time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// Condition as given.
    pub condition: String,
    /// Value at that time.
    pub value: Measured,
    /// Process with this value; `None` if it is the value of everything traced.
    pub pid: Option<u32>,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.condition, self.value)?;
        match self.pid {
            Some(pid) => write!(f, " in process {pid}"),
            None => Ok(()),
        }
    }
}

/// Value of a quantity that has a unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Amount of memory.
    Bytes(u64),
    /// Rate of growth.
    BytesPerSecond(f64),
    /// Share of a limit.
    Percent(f64),
}

impl Measured {
    /// Value in its unit.
    pub fn value(self) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64,
            Self::BytesPerSecond(value) | Self::Percent(value) => value,
        }
    }

    /// Name of the unit in reports.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytes",
            Self::BytesPerSecond(_) => "bytes_per_second",
            Self::Percent(_) => "percent",
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) => f.write_str(&size(bytes)),
            Self::BytesPerSecond(rate) => {
                let sign = if rate < 0.0 { "-" } else { "" };
                write!(f, "{sign}{}/min", size(whole(rate.abs() * 60.0)))
            }
            Self::Percent(percent) => write!(f, "{percent:.1} %"),
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reason says the condition, the value in a unit for people, and the process.
    #[test]
    fn texts() {
        let reached = |condition: &str, value, pid| Reached {
            condition: condition.to_owned(),
            value,
            pid,
        };
        let all = vec![
            reached("rss>1MiB", Measured::Bytes(3 << 19), Some(7)),
            reached("growth>1KiB/s", Measured::BytesPerSecond(2048.0), None),
            reached("cgroup>80%", Measured::Percent(81.25), Some(8)),
        ];
        assert_eq!(
            Reason::Conditions(all).to_string(),
            "rss>1MiB: 1.5 MiB in process 7; growth>1KiB/s: 120.0 KiB/min; cgroup>80%: 81.2 % in process 8"
        );
        assert_eq!(Measured::BytesPerSecond(-2048.0).to_string(), "-120.0 KiB/min");
        assert_eq!(Reason::End.to_string(), "the trace ended");
    }
}
