//! Diagnosis for people: a line per finding, the verdict last.

use std::io::{self, Write};

use super::diagnosis::Diagnosis;
use super::finding::Finding;
use leak_report::render::printable;

pub(super) fn render(diagnosis: &Diagnosis, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "System")?;
    for finding in &diagnosis.system {
        line(finding, out)?;
    }
    if let Some(process) = &diagnosis.process {
        let name = process.comm.as_deref().map(printable).unwrap_or_default();
        let exe = process.exe.as_ref().map(|exe| printable(&exe.to_string_lossy()));
        let exe = exe.map_or(String::new(), |exe| format!(" ({exe})"));
        writeln!(out, "Process {} {name}{exe}", process.pid)?;
        for finding in process.findings() {
            line(&finding, out)?;
        }
    }
    writeln!(out, "Verdict: {}", diagnosis.summary().text)
}

pub(super) fn line(finding: &Finding, out: &mut dyn Write) -> io::Result<()> {
    let Finding {
        level,
        topic,
        text,
        remedy,
    } = finding;
    write!(out, "  {:<8} {topic}: {text}", level.name())?;
    if let Some(remedy) = remedy {
        write!(out, " -> {remedy}")?;
    }
    writeln!(out)
}
