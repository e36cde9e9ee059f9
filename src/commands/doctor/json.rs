//! The diagnosis as one JSON object on one line, schema version 1. Fields are only ever added.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::diagnosis::Diagnosis;
use super::finding::Finding;
use super::modules::ModuleFinding;
use super::process::ProcessFindings;
use crate::allocator::{ProbeSite, SiteCost};
use leak_report::model::Name;
use leak_report::render::write_json;

const SCHEMA_VERSION: u32 = 1;

pub(super) fn render(diagnosis: &Diagnosis, out: &mut dyn Write) -> io::Result<()> {
    let verdict = diagnosis.summary();
    let json = DiagnosisJson {
        schema_version: SCHEMA_VERSION,
        memleak: env!("CARGO_PKG_VERSION"),
        system: diagnosis.system.iter().map(FindingJson::from).collect(),
        process: diagnosis.process.as_ref().map(ProcessJson::from),
        verdict: VerdictJson {
            level: verdict.level.name(),
            text: verdict.text,
        },
    };
    write_json(&json, out)?;
    writeln!(out)
}

#[derive(Serialize)]
struct DiagnosisJson {
    schema_version: u32,
    memleak: &'static str,
    system: Vec<FindingJson>,
    process: Option<ProcessJson>,
    verdict: VerdictJson,
}

#[derive(Serialize)]
struct VerdictJson {
    level: &'static str,
    text: String,
}

#[derive(Serialize)]
struct FindingJson {
    level: &'static str,
    topic: &'static str,
    text: String,
    remedy: Option<String>,
}

#[derive(Serialize)]
struct ProcessJson {
    pid: u32,
    comm: Option<String>,
    exe: Option<String>,
    /// All findings in words, including those about modules and probes.
    findings: Vec<FindingJson>,
    modules: Vec<ModuleJson>,
    probes: Vec<ProbeJson>,
}

#[derive(Serialize)]
struct ModuleJson {
    module: String,
    build_id: Option<String>,
    error: Option<String>,
    code_bytes: Option<u64>,
    covered_bytes: Option<u64>,
    rows: Option<u64>,
    unsupported_rows: Option<u64>,
    table_bytes: Option<u64>,
    unsupported_calls: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct ProbeJson {
    function: String,
    aliases: Vec<Name>,
    module: String,
    /// SVMA in hexadecimal.
    address: String,
    /// Bytes from the function's entry.
    offset: u64,
    emulated: bool,
}

impl From<&Finding> for FindingJson {
    fn from(finding: &Finding) -> Self {
        Self {
            level: finding.level.name(),
            topic: finding.topic,
            text: finding.text.clone(),
            remedy: finding.remedy.clone(),
        }
    }
}

impl From<&ProcessFindings> for ProcessJson {
    fn from(process: &ProcessFindings) -> Self {
        Self {
            pid: process.pid,
            comm: process.comm.clone(),
            exe: process.exe.as_ref().map(|exe| exe.to_string_lossy().into_owned()),
            findings: process
                .findings()
                .map(|finding| FindingJson::from(&finding))
                .collect(),
            modules: process.modules.iter().map(ModuleJson::from).collect(),
            probes: process.sites.iter().map(|site| probe(process, site)).collect(),
        }
    }
}

fn probe(process: &ProcessFindings, site: &ProbeSite) -> ProbeJson {
    ProbeJson {
        function: site.function.name.to_string(),
        aliases: site.aliases.clone(),
        module: process.path(site.module),
        address: format!("{:#x}", site.svma),
        offset: site.svma.offset_from(site.entry),
        emulated: site.cost == SiteCost::Emulated,
    }
}

impl From<&ModuleFinding> for ModuleJson {
    fn from(module: &ModuleFinding) -> Self {
        let table = module.table.as_ref().ok();
        let facts = table.map(|table| table.facts);
        Self {
            module: module.path.to_string_lossy().into_owned(),
            build_id: module.build_id.clone(),
            error: module.table.as_ref().err().cloned(),
            code_bytes: facts.map(|facts| facts.code_bytes),
            covered_bytes: facts.map(|facts| facts.covered_bytes),
            rows: facts.map(|facts| facts.rows),
            unsupported_rows: facts.map(|facts| facts.unsupported_rows),
            table_bytes: facts.map(|facts| facts.table_bytes),
            unsupported_calls: table
                .map(|table| table.unsupported_calls.clone())
                .unwrap_or_default(),
        }
    }
}
