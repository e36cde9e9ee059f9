//! Starts the program to trace and stops it where everything that it needs is mapped, but none of its code
//! has run.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, bail};
use unwind_tables::addr::Avma;

use super::hook;
use crate::process::launch::{Relay, StoppedProgram, Streams};
use crate::process::{MappedCode, Mappings, Modules, Target, translator};

/// Starts `program` and stops it: at the last call of its loader's hook before constructors run, or at its
/// entry point if it has no loader, or one that calls no hook. `preloaded` is an environment variable that
/// makes it load a library before others. Where the command is a loader itself, with a program to load, that
/// program's loader is meant.
///
/// # Errors
///
/// Fails if the program cannot be started, stopped or inspected. It does not run then.
pub(super) fn start_stopped(
    program: &[OsString],
    preloaded: Option<(&'static str, OsString)>,
    streams: Streams,
    relay: &Arc<Relay>,
) -> anyhow::Result<StoppedProgram> {
    if let Some((name, by)) = translator::of_command(program) {
        bail!(
            "`{name}` starts programs under {by}, which executes translated copies of their code: a probe \
             would kill them; trace the program without it"
        );
    }
    let mut stopped = StoppedProgram::start(program, preloaded, streams, relay)?;
    let target = Target::open(stopped.pid())?;
    tracing::info!("started {} as process {}", target.comm(), stopped.pid());
    if streams == Streams::InheritedWithoutTerminal {
        tracing::info!(
            "its output to this terminal goes to /dev/null; redirect it in the command to keep it"
        );
    }
    let entry = stopped
        .entry()
        .context("cannot find the program's entry point in /proc")?;
    let mut modules = Modules::new();
    let mappings = target
        .read_mappings(&mut modules)
        .context("cannot read its mappings")?;
    let hook = hook::in_memory(&mappings, &modules);
    let memory = File::open(format!("/proc/{}/mem", stopped.pid())).context("cannot read its memory")?;
    let place = hook.map(|(hook, _)| hook);
    let (first, other) = match place {
        // The loader itself was started: it is stopped at its first instruction, and has not mapped anything.
        Some(place) if is_of_loader(&mappings, entry) => (place, None),
        place => (entry, place),
    };
    while stopped.run_to(first, other)? != entry {
        // AArch64 would stop at it again. Also, a probe will be placed here, which would announce a change
        // that did not happen.
        stopped.step()?;
        let state = hook.and_then(|(_, state)| state);
        if state.is_none_or(|state| is_zero(&memory, state)) {
            break;
        }
    }
    Ok(stopped)
}

/// Returns whether the code at `address` is the loader's.
fn is_of_loader(mappings: &Mappings, address: Avma) -> bool {
    let found = mappings.find(address).map(|mapping| &mapping.code);
    matches!(found, Some(&MappedCode::Module { module, .. }) if mappings.loader() == Some(module))
}

/// Returns whether the 32-bit word at `address` is 0, which is also assumed if it cannot be read.
fn is_zero(memory: &File, address: Avma) -> bool {
    let mut word = [0; 4];
    _ = memory.read_exact_at(&mut word, address.get());
    u32::from_ne_bytes(word) == 0
}
