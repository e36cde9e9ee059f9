//! Code addresses and the modules that contain them. Type parameters: `T` is a text and `M` a module, or
//! their ids in a [`Dictionary`](super::Dictionary).

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unwind_tables::Coverage;
use unwind_tables::addr::{Avma, FileOffset, Svma};
use unwind_tables::coverage::RuleKind;

use super::TextKind;

/// Address in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place<M> {
    /// The module.
    pub module: M,
    /// Address in the module's own space.
    pub svma: Svma,
}

/// Code address in a process, and in its module if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location<M> {
    /// Address in the process.
    pub pc: Avma,
    /// Module and SVMA of the address; `None` outside all modules (JIT code).
    pub place: Option<Place<M>>,
}

impl<M> Location<M> {
    /// Converts the module.
    pub fn map<N>(self, other: impl FnOnce(M) -> N) -> Location<N> {
        let place = |Place { module, svma }| Place {
            module: other(module),
            svma,
        };
        Location {
            pc: self.pc,
            place: self.place.map(place),
        }
    }
}

/// Module of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Module<T = Arc<str>> {
    /// Path as the process sees it, or a name in brackets for the vDSO.
    pub path: T,
    /// Build ID in hexadecimal digits.
    pub build_id: Option<T>,
    /// Code segments; empty if not known.
    pub code: Vec<CodeSegment>,
    /// Size and coverage of its unwind table, if one was built.
    pub table: Option<TableFacts>,
}

impl<T> Module<T> {
    /// Converts the texts.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> Module<U> {
        Module {
            path: other(TextKind::File, &self.path),
            build_id: self.build_id.as_ref().map(|text| other(TextKind::BuildId, text)),
            code: self.code.clone(),
            table: self.table,
        }
    }
}

/// Segment of a module that contains code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeSegment {
    /// Address range in the module's own space.
    pub svma: Range<Svma>,
    /// File offset of its first byte.
    pub offset: FileOffset,
}

/// Size and coverage of a module's unwind table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableFacts {
    /// Bytes of the module's code.
    pub code_bytes: u64,
    /// Bytes of code that CFI covers.
    pub covered_bytes: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Rows whose CFI the table cannot express.
    pub unsupported_rows: u64,
    /// Size of the table in bytes.
    pub table_bytes: u64,
}

impl TableFacts {
    /// Takes the facts from a table's coverage and its size in bytes.
    pub fn of(coverage: &Coverage, table_bytes: u64) -> Self {
        Self {
            code_bytes: coverage.code_bytes,
            covered_bytes: coverage.code_bytes.saturating_sub(coverage.gap_bytes),
            rows: coverage.rows,
            unsupported_rows: coverage.of_kind(RuleKind::Unsupported).rows,
            table_bytes,
        }
    }
}
