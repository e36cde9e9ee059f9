//! Hidden flags for benchmarks and tests: switch single fast paths off.

use clap::{Args, ValueEnum};

use crate::bpf::FastPaths;

/// Flags of fast paths: they make walks and probes faster, and do not change results.
#[derive(Debug, Args)]
pub struct FastPathArgs {
    /// Remember the unwind rule of each address.
    #[arg(long, value_enum, default_value = "on", value_name = "on|off", hide = true)]
    pub walk_cache: Switch,
    /// Read the stack in large pieces.
    #[arg(long, value_enum, default_value = "on", value_name = "on|off", hide = true)]
    pub walk_window: Switch,
    /// Remember walks by the registers that they started with.
    #[arg(long, value_enum, default_value = "on", value_name = "on|off", hide = true)]
    pub walk_memo: Switch,
    /// Repeat each walk without the fast paths, and count differences.
    #[arg(long, hide = true)]
    pub check_walks: bool,
    /// Put probes on the first instruction of functions, which the kernel often has to single-step.
    #[arg(long, hide = true)]
    pub probe_first_instructions: bool,
}

/// Value of a flag that switches something on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

impl From<&FastPathArgs> for FastPaths {
    fn from(args: &FastPathArgs) -> Self {
        Self {
            cache: args.walk_cache == Switch::On,
            window: args.walk_window == Switch::On,
            memo: args.walk_memo == Switch::On,
            checked: args.check_walks,
        }
    }
}
