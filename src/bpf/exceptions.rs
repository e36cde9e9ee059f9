//! Programs that are left out of an object, the verifier's log level for the others, and, for tests, broken
//! programs: the kernel refuses these, as other kernels may refuse any.

#![allow(unsafe_code, reason = "functions of libbpf that libbpf-rs does not have")]

use std::cell::Cell;
use std::ffi::{OsStr, c_char};

use libbpf_rs::libbpf_sys::bpf_insn;
use libbpf_rs::{AsRawLibbpf, OpenObject, OpenProgramMut};

use super::refused::{EVERYTHING, STATISTICS};

/// Bytes for a whole log. If it is larger, kernels before 6.4 keep its beginning, later ones its end.
const LOG_BYTES: usize = 16 << 20;

/// Exceptions from the settings of an object.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    /// Names of programs that are not loaded.
    pub(super) omitted: Vec<String>,
    /// Name of the only program that is loaded; `None` if there are others.
    pub(super) only: Option<String>,
    /// Names of programs that are changed so that the verifier refuses them.
    pub(super) broken: Vec<String>,
    /// Room for the verifier's whole log of the only program. Without it, the verifier writes only why it
    /// refuses a program.
    pub(super) log: Option<LogRoom>,
}

impl Exceptions {
    pub(super) fn omits(&self, program: &OsStr) -> bool {
        let is_named = |name: &String| program == name.as_str();
        self.omitted.iter().any(is_named) || self.only.as_ref().is_some_and(|only| !is_named(only))
    }

    /// Applies them to an object, after its settings. The object must be loaded before these are dropped.
    pub(super) fn apply(&self, object: &mut OpenObject) -> Result<(), libbpf_rs::Error> {
        for mut program in object.progs_mut() {
            program.set_log_level(STATISTICS);
            if self.omits(program.name()) {
                program.set_autoload(false);
            } else if let Some(log) = &self.log {
                program.set_log_level(EVERYTHING);
                log.lend_to(&mut program)?;
            }
            if self.broken.iter().any(|broken| program.name() == broken.as_str()) {
                break_program(&mut program)?;
            }
        }
        Ok(())
    }
}

/// Buffer of fixed size for a log of the verifier, whatever its outcome. libbpf would enlarge its own buffer,
/// and verify the program again, until the log fits.
#[derive(Debug)]
pub(super) struct LogRoom(Vec<Cell<u8>>);

impl LogRoom {
    pub(super) fn new() -> Self {
        Self(vec![Cell::new(0); LOG_BYTES])
    }

    fn lend_to(&self, program: &mut OpenProgramMut<'_>) -> Result<(), libbpf_rs::Error> {
        // SAFETY: the kernel writes no more than these bytes, whose cells may change, and only while the
        // object is loaded.
        let refused = unsafe {
            libbpf_sys::bpf_program__set_log_buf(
                program.as_libbpf_object().as_ptr(),
                self.0.as_ptr().cast::<c_char>().cast_mut(),
                self.0.len() as u64,
            )
        };
        checked(refused)
    }

    /// Text that was written.
    pub(super) fn text(&self) -> String {
        let bytes = self.0.iter().map(Cell::get).take_while(|&byte| byte != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
    }
}

/// Replaces each end of a program by an endless loop, which the verifier refuses when it gets there. No other
/// instruction has the opcode of an end, and relocation does not change it.
fn break_program(program: &mut OpenProgramMut<'_>) -> Result<(), libbpf_rs::Error> {
    const EXIT: u8 = 0x95;
    let endless = bpf_insn {
        // `goto -1`: BPF_JMP | BPF_JA.
        code: 0x05,
        off: -1,
        ..Default::default()
    };
    let instructions = program.insns().iter();
    let mut broken: Vec<_> = instructions
        .map(|instruction| match instruction.code {
            EXIT => endless,
            _ => *instruction,
        })
        .collect();
    // SAFETY: the program is open and not loaded; libbpf copies as many instructions as there were.
    let refused = unsafe {
        libbpf_sys::bpf_program__set_insns(
            program.as_libbpf_object().as_ptr(),
            broken.as_mut_ptr(),
            broken.len() as u64,
        )
    };
    checked(refused)
}

fn checked(result: i32) -> Result<(), libbpf_rs::Error> {
    match result {
        0 => Ok(()),
        error => Err(libbpf_rs::Error::from_raw_os_error(error.saturating_neg())),
    }
}
