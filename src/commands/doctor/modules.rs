//! Examines a process's modules: builds the unwind table of each on all cores, and discards it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use unwind_tables::rule::{Reason, UnwindRule};
use unwind_tables::{Compiled, ElfView, TableError, build};

use super::finding::{Finding, Level};
use crate::allocator::calls;
use crate::base::parallel;
use crate::process::{Module, ModuleId};
use crate::symbolize::compile_with_debug_file;
use leak_report::model::TableFacts;
use leak_report::render::{counted, percent, printable, size};

/// Minimum percentage of code that CFI covers; less is worth a warning.
const GOOD_COVERAGE: u64 = 90;
/// Maximum bytes of uncovered code without a warning: linkers and assembly add as much to any object.
const LITTLE_CODE: u64 = 4096;

/// Findings about one module of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFinding {
    /// Identifies it among the process's modules.
    pub id: ModuleId,
    /// Path as the process sees it.
    pub path: PathBuf,
    /// Build ID in hexadecimal digits.
    pub build_id: Option<String>,
    /// Table, or the reason why there is none.
    pub table: Result<TableFinding, String>,
}

/// Facts about the table that a module would have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableFinding {
    pub facts: TableFacts,
    /// Calls at which stacks would end, since the table cannot express the rule there, by reason.
    pub unsupported_calls: BTreeMap<&'static str, u64>,
}

/// Builds the tables of `modules`, whose debug files are below `roots`. Returns findings in the same order.
pub(super) fn examine(modules: &[&Module], roots: &[PathBuf]) -> Vec<ModuleFinding> {
    let ordered = modules.iter().enumerate().collect();
    let mut found = parallel::for_each(ordered, |(order, module)| (order, examine_one(module, roots)));
    found.sort_unstable_by_key(|&(order, _)| order);
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Examines a module, and releases the pages of its file, which are not needed again soon.
fn examine_one(module: &Module, roots: &[PathBuf]) -> ModuleFinding {
    let table = table(module, roots).map_err(|error| error.to_string());
    module.release();
    ModuleFinding {
        id: module.id,
        path: module.path.clone(),
        build_id: module.build_id.as_ref().map(ToString::to_string),
        table,
    }
}

fn table(module: &Module, roots: &[PathBuf]) -> Result<TableFinding, TableError> {
    let Compiled { image, coverage } = compile_with_debug_file(module.bytes(), &module.path, roots)?;
    let table_bytes = image.map_or(0, |image| image.byte_len());
    let facts = TableFacts::of(&coverage, table_bytes as u64);
    let unsupported_calls = match facts.unsupported_rows {
        0 => BTreeMap::new(),
        _ => unsupported_calls(module.bytes())?,
    };
    Ok(TableFinding {
        facts,
        unsupported_calls,
    })
}

/// Counts calls in rows that the table cannot express, by reason. Rows start between instructions, so each
/// can be decoded by itself.
fn unsupported_calls(bytes: &[u8]) -> Result<BTreeMap<&'static str, u64>, TableError> {
    let view = ElfView::parse(bytes)?;
    let (table, _) = build::build(&view)?;
    let mut calls: BTreeMap<&'static str, u64> = BTreeMap::new();
    for pair in table.rows().windows(2) {
        let [row, next] = pair else { continue };
        if let UnwindRule::Unsupported(reason) = row.rule {
            let code = calls::code_at(bytes, view.segments(), &(row.start..next.start));
            let count = calls::return_addresses(view.architecture(), code, row.start).count() as u64;
            if count > 0 {
                *calls.entry(Reason::name(reason)).or_default() += count;
            }
        }
    }
    Ok(calls)
}

impl ModuleFinding {
    /// Sums up the module in one finding.
    pub(super) fn finding(&self) -> Finding {
        let path = printable(&self.path.to_string_lossy());
        let build = match &self.build_id {
            Some(build_id) => format!(", build {build_id}"),
            None => String::new(),
        };
        let table = match &self.table {
            Ok(table) => table,
            Err(error) => {
                return Finding::warning("module", format!("{path}: no unwind table: {error}{build}"))
                    .with_remedy("stacks end in it; `memleak table` with its path says more");
            }
        };
        let TableFinding {
            facts,
            unsupported_calls,
        } = table;
        let code = size(facts.code_bytes);
        if facts.rows == 0 && facts.code_bytes > 0 {
            return Finding::warning("module", format!("{path}: no CFI in {code} of code{build}")).with_remedy(
                "stacks go on by frame pointer where it has one; build it with -fasynchronous-unwind-tables",
            );
        }
        let text = format!(
            "{path}: CFI for {} of {code} of code; table {}, {} rows{build}",
            percent(facts.covered_bytes, facts.code_bytes),
            size(facts.table_bytes),
            facts.rows,
        );
        let unsupported: u64 = unsupported_calls.values().sum();
        if unsupported > 0 {
            let reasons: Vec<_> = unsupported_calls.keys().copied().collect();
            let text = format!(
                "{text}; {} that it cannot unwind from ({})",
                counted(unsupported, "call"),
                reasons.join(", ")
            );
            return Finding::note("module", text).with_remedy("stacks that pass those calls end there");
        }
        let uncovered = facts.code_bytes.saturating_sub(facts.covered_bytes);
        let well_covered = uncovered < LITTLE_CODE
            || facts.covered_bytes.saturating_mul(100) >= facts.code_bytes.saturating_mul(GOOD_COVERAGE);
        match well_covered {
            true => Finding::fine("module", text),
            false => Finding::new(Level::Warning, "module", text).with_remedy(
                "stacks go on by frame pointer in the rest, where it has one; build that with CFI",
            ),
        }
    }
}
