//! Trials of all programs of an object on this kernel, for a report on it, including those after a refused
//! one.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libbpf_rs::Object;
use libbpf_rs::skel::Skel;

use super::exceptions::{Exceptions, LogRoom};
use super::fdinfo;
use super::kernel::{Kernel, Storage};
use super::kernel_trace::{KernelSettings, KernelTrace};
use super::load_error::LoadError;
use super::refused::{RefusedProgram, last_lines};
use super::registers::Registers;
use super::settings::Settings;

/// Time spent on refused programs after which no others are tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// Trials of several objects, which share the time that is spent on refused programs.
#[derive(Debug)]
pub struct Trials<'a> {
    broken: &'a [String],
    spent: Duration,
}

/// Outcome of the trial of an object's programs.
#[derive(Debug, Default)]
pub struct Trial {
    /// Programs that were accepted, with the number of instructions that the verifier followed, if the kernel
    /// reports it.
    pub accepted: Vec<(String, Option<u64>)>,
    /// Programs that were refused, each with the end of the verifier's whole log.
    pub refused: Vec<RefusedProgram>,
    /// Reason why the other programs were not tried, if some were not.
    pub rest: Option<String>,
}

impl<'a> Trials<'a> {
    /// Begins trials in which the programs that `broken` names are refused.
    pub fn new(broken: &'a [String]) -> Self {
        Self {
            broken,
            spent: Duration::ZERO,
        }
    }

    /// Tries the programs that trace processes with these settings.
    pub fn of_processes(&mut self, settings: &Settings) -> Trial {
        self.of(|exceptions| {
            let mut storage = Storage::uninit();
            let kernel = Kernel::load_but(&mut storage, settings, exceptions)?;
            Ok(accepted(kernel.skeleton.object()))
        })
    }

    /// Tries the programs that trace the kernel's own allocations.
    pub fn of_kernel(&mut self, settings: &KernelSettings) -> Trial {
        self.of(|exceptions| {
            let mut storage = Storage::uninit();
            let trace = KernelTrace::load_but(&mut storage, settings, exceptions)?;
            Ok(accepted(trace.object()))
        })
    }

    /// Tries the program that reads registers for verdicts.
    pub fn of_registers(&mut self) -> Trial {
        self.of(|exceptions| {
            let mut storage = Storage::uninit();
            let registers = Registers::load_but(&mut storage, exceptions)?;
            Ok(accepted(registers.object()))
        })
    }

    /// Loads an object repeatedly, each time without the programs refused before, until the rest is accepted.
    fn of(
        &mut self,
        mut load: impl FnMut(&Exceptions) -> Result<Vec<(String, Option<u64>)>, LoadError>,
    ) -> Trial {
        let mut trial = Trial::default();
        let mut exceptions = Exceptions {
            broken: self.broken.to_vec(),
            ..Exceptions::default()
        };
        loop {
            if self.spent > PATIENCE {
                let spent = self.spent.as_secs_f64();
                trial.rest = Some(format!(
                    "gave up on the others after {spent:.0} s with refused programs"
                ));
                break;
            }
            match load(&exceptions) {
                Ok(accepted) => {
                    trial.accepted = accepted;
                    break;
                }
                Err(LoadError::Program(mut refused)) if !exceptions.omitted.contains(&refused.name) => {
                    exceptions.omitted.push(refused.name.clone());
                    let began = Instant::now();
                    if refused.is_by_verifier() {
                        refused.log = whole_log(&refused, self.broken, &mut load);
                    }
                    self.spent += refused.took + began.elapsed();
                    trial.refused.push(refused);
                }
                Err(error) => {
                    trial.rest = Some(error.to_string());
                    break;
                }
            }
        }
        trial
    }
}

/// End of the verifier's whole log of a program.
fn whole_log<T>(
    refused: &RefusedProgram,
    broken: &[String],
    load: &mut impl FnMut(&Exceptions) -> Result<T, LoadError>,
) -> Vec<String> {
    let exceptions = Exceptions {
        only: Some(refused.name.clone()),
        broken: broken.to_vec(),
        log: Some(LogRoom::new()),
        ..Exceptions::default()
    };
    // It is refused again.
    _ = load(&exceptions);
    let log = exceptions
        .log
        .map(|log| last_lines(&log.text()))
        .unwrap_or_default();
    // A log that did not fit may lack its end.
    match refused.log.first().is_none_or(|reason| log.contains(reason)) {
        true => log,
        false => [log, refused.log.clone()].concat(),
    }
}

fn accepted(object: &Object) -> Vec<(String, Option<u64>)> {
    let loaded = object.progs().filter(|program| program.autoload());
    let described = loaded.map(|program| {
        let fields = fdinfo::read(program.as_fd()).unwrap_or_default();
        let name = program.name().to_string_lossy().into_owned();
        (name, fields.number("verified_insns"))
    });
    described.collect()
}
