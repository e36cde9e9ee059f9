//! Report on a kernel that refuses programs, for an issue: one text, without names of hosts, users, processes
//! and their files.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;

use sha2::{Digest, Sha256};

use super::attach::settings;
use super::diagnosis::Diagnosis;
use super::text;
use crate::base::pages;
use crate::bpf::{
    self, AttachPath, CallHooks, FaultSettings, KernelEvents, KernelSettings, RefusedProgram, Settings,
    Takes, Trial, Trials,
};
use crate::sinks::output::Document;
use leak_report::model::{CallTrace, Sampling};
use leak_report::render::printable;

/// Destination of a report on the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Standard,
    File(PathBuf),
}

/// First line of a report. A file that begins with it is an older report, and is replaced.
const TITLE: &str = "memleak's report on a kernel";

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Facts about the kernel: name and file of each.
const FACTS: [(&str, &str); 8] = [
    ("version", "/proc/sys/kernel/version"),
    ("security modules", "/sys/kernel/security/lsm"),
    ("lockdown", "/sys/kernel/security/lockdown"),
    (
        "kernel.unprivileged_bpf_disabled",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
    ),
    ("net.core.bpf_jit_enable", "/proc/sys/net/core/bpf_jit_enable"),
    ("net.core.bpf_jit_harden", "/proc/sys/net/core/bpf_jit_harden"),
    (
        "kernel.perf_event_paranoid",
        "/proc/sys/kernel/perf_event_paranoid",
    ),
    ("kernel.kptr_restrict", "/proc/sys/kernel/kptr_restrict"),
];

/// Result of loading an object's programs with some settings.
struct Section {
    name: String,
    trial: Trial,
}

/// Writes the report. If it is written to a file, prints its name and the verdict to `out`.
///
/// # Errors
///
/// Fails if it cannot be written, or if a file that is no older report has its name.
pub(super) fn write(
    diagnosis: &Diagnosis,
    broken: &[String],
    destination: &Destination,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match destination {
        Destination::Standard => {
            render(diagnosis, &sections(broken), out)?;
            Ok(out.flush()?)
        }
        Destination::File(path) => {
            let document = Document::prepare(path, TITLE, false)?;
            document.publish(|file| render(diagnosis, &sections(broken), file))?;
            let name = printable(&path.to_string_lossy()).to_string();
            writeln!(
                out,
                "wrote {name}: attach it to an issue; it contains no names of your hosts, users, processes \
                 or files"
            )?;
            Ok(writeln!(out, "Verdict: {}", diagnosis.summary().text)?)
        }
    }
}

fn render(diagnosis: &Diagnosis, sections: &[Section], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{TITLE}\n")?;
    fact("memleak", env!("CARGO_PKG_VERSION"), out)?;
    fact("kernel", &format!("Linux {}", bpf::release()), out)?;
    fact("machine", std::env::consts::ARCH, out)?;
    for (name, path) in FACTS {
        let text = fs::read_to_string(path).unwrap_or_default();
        fact(
            name,
            if text.trim().is_empty() {
                "cannot be read"
            } else {
                text.trim()
            },
            out,
        )?;
    }
    fact("type information", &type_information(), out)?;
    let processors = processors();
    fact("CPUs", &processors, out)?;
    fact("page size", &pages::bytes().to_string(), out)?;
    writeln!(out, "\nFindings")?;
    for finding in &diagnosis.system {
        text::line(finding, out)?;
    }
    for section in sections {
        writeln!(out, "\nPrograms for {}", section.name)?;
        programs(&section.trial, out)?;
    }
    let mut written = HashSet::new();
    for section in sections {
        for program in &section.trial.refused {
            // Often the same program is refused in several sections.
            if written.insert((&program.name, &program.log)) {
                log(program, &section.name, out)?;
            }
        }
    }
    Ok(())
}

fn fact(name: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  {:<34} {}", format!("{name}:"), printable(text))
}

/// Number of CPUs that programs can run on.
fn processors() -> String {
    let usable = thread::available_parallelism().map_or(0, usize::from);
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    format!("{usable} usable, possible: {}", possible.trim())
}

/// Size and hash of the kernel's BTF, which identify the same kernel elsewhere.
fn type_information() -> String {
    match fs::read(BTF) {
        Ok(bytes) => {
            let hash = Sha256::digest(&bytes);
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} bytes, SHA-256 {hash}", bytes.len())
        }
        Err(error) => format!("cannot be read: {error}"),
    }
}

fn programs(trial: &Trial, out: &mut dyn Write) -> io::Result<()> {
    for (name, instructions) in &trial.accepted {
        let instructions = instructions.map_or("?".to_owned(), |count| count.to_string());
        writeln!(out, "  {:<8} {name}: {instructions} instructions", "loaded")?;
    }
    for program in &trial.refused {
        let reason = program.reason();
        writeln!(
            out,
            "  {:<8} {}: {} after {:.1} s",
            "refused",
            program.name,
            printable(&reason),
            program.took.as_secs_f64()
        )?;
    }
    match &trial.rest {
        Some(why) => writeln!(out, "  {:<8} {}", "stopped", printable(why)),
        None => Ok(()),
    }
}

/// Writes the last lines of the verifier's log.
fn log(program: &RefusedProgram, of: &str, out: &mut dyn Write) -> io::Result<()> {
    if program.log.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nEnd of the verifier's log of {} for {of}", program.name)?;
    program
        .log
        .iter()
        .try_for_each(|line| writeln!(out, "  {}", printable(&without_addresses(line))))
}

/// A line of the verifier's log without kernel addresses, which would reveal where the kernel is loaded
/// (KASLR).
fn without_addresses(line: &str) -> String {
    /// Prefix of all kernel addresses, and their length in hexadecimal digits.
    const BEGINNING: &str = "ffff";
    const DIGITS: usize = 16;
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(BEGINNING) {
        let digits = rest[at..].bytes().take_while(u8::is_ascii_hexdigit).count();
        let (before, after) = (&rest[..at], &rest[at + digits..]);
        text += before;
        text += if digits == DIGITS {
            "…"
        } else {
            &rest[at..at + digits]
        };
        rest = after;
    }
    text + rest
}

/// Tries all programs that any trace loads.
fn sections(broken: &[String]) -> Vec<Section> {
    let mut trials = Trials::new(broken);
    let mut sections: Vec<_> = of_processes()
        .into_iter()
        .map(|(name, settings)| Section {
            name,
            trial: trials.of_processes(&settings),
        })
        .collect();
    let of_kernel = match KernelEvents::read() {
        Ok(events) => trials.of_kernel(&kernel_settings(events)),
        Err(error) => Trial {
            rest: Some(error.to_string()),
            ..Trial::default()
        },
    };
    sections.push(Section {
        name: "the kernel's own allocations".to_owned(),
        trial: of_kernel,
    });
    sections.push(Section {
        name: "the registers of threads, for verdicts".to_owned(),
        trial: trials.of_registers(),
    });
    sections
}

fn of_processes() -> Vec<(String, Settings)> {
    let of_calls = |hooks| Settings {
        faults: Some(FaultSettings {
            function: 0,
            seed: 0,
            takes: Takes::default(),
        }),
        ..settings(AttachPath::Perf, Some(hooks))
    };
    let by_path =
        AttachPath::ALL.map(|path| (format!("blocks, by {}", path.in_words()), settings(path, None)));
    let without_python = Settings {
        python: false,
        ..settings(AttachPath::Perf, None)
    };
    let announced = Settings {
        announced: true,
        sampling: Sampling::Provider(None),
        ..settings(AttachPath::Perf, None)
    };
    let others = [
        (
            "blocks, by a perf event per probe, without Python".to_owned(),
            without_python,
        ),
        ("blocks that processes announce".to_owned(), announced),
    ];
    let calls =
        CallHooks::ALL.map(|hooks| (format!("mappings and page faults, by {hooks}"), of_calls(hooks)));
    by_path.into_iter().chain(others).chain(calls).collect()
}

fn kernel_settings(events: KernelEvents) -> KernelSettings {
    KernelSettings {
        percpu: events.has_percpu(),
        events,
        stacks: 1 << 8,
        blocks: 1 << 8,
        stack_limit: 127,
        sizes: None,
        sampling: Sampling::All,
        calls: CallTrace::Off,
        // Left out: these are kernel addresses, which would appear in the verifier's log.
        interrupt_entries: (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernel_are_left_out() {
        for (line, expected) in [
            ("12: (18) r1 = 0xffff888104a3b000", "12: (18) r1 = 0x…"),
            (
                "R1=map_ptr(ks=4) ffffc90000123456,ffffc90000123457",
                "R1=map_ptr(ks=4) …,…",
            ),
            (
                "R2=0xffffffff var_off=(0x0; 0xffff)",
                "R2=0xffffffff var_off=(0x0; 0xffff)",
            ),
            ("; block address", "; block address"),
        ] {
            assert_eq!(without_addresses(line), expected);
        }
    }
}
