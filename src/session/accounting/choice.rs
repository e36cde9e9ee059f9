//! Choice of the accounts for what a trace counts.

use super::mappings::MappingAccounts;
use super::pages::PageAccounts;
use super::takes::TakeAccounts;
use super::{Accounting, BlockAccounts};
use crate::bpf::FaultSettings;
use crate::session::config::{Counted, TraceConfig};

/// Empty accounts of what `config` says. `faults`: how page faults are traced, if they are; `children`: the
/// children of a process count as well.
pub(in crate::session) fn accounts(
    config: &TraceConfig,
    faults: Option<FaultSettings>,
    children: bool,
) -> Box<dyn Accounting> {
    match (faults, config.count.counted) {
        (Some(_), Counted::Takes(_)) => Box::new(TakeAccounts::new(children)),
        (Some(faults), _) => Box::new(PageAccounts::new(config, faults, children)),
        (None, Counted::Mappings) => Box::new(MappingAccounts::new(config)),
        (None, Counted::Blocks | Counted::Pages | Counted::Takes(_) | Counted::Kernel(_)) => {
            Box::new(BlockAccounts)
        }
    }
}
