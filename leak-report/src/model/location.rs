//! Code addresses and the modules that they lie in. `T` is a text, `M` a module: themselves, or their numbers in a
//! [`Dictionary`](super::Dictionary).

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unwind_tables::Coverage;
use unwind_tables::addr::{Avma, FileOffset, Svma};
use unwind_tables::coverage::RuleKind;

use super::TextKind;

/// A byte of a module, in the module's own space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place<M> {
    /// The module.
    pub module: M,
    /// The address in it.
    pub svma: Svma,
}

/// A code address in a process and, if it lies in a module, there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location<M> {
    /// In the process.
    pub pc: Avma,
    /// The same address in its module; `None` outside all modules (JIT code).
    pub place: Option<Place<M>>,
}

impl<M> Location<M> {
    /// The same address, with what `other` makes of the module.
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

/// A module as reports know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Module<T = Arc<str>> {
    /// Its path as the process sees it, or a name in brackets for the vDSO.
    pub path: T,
    /// Its build-id in hexadecimal digits.
    pub build_id: Option<T>,
    /// Where its code is; empty where that is not known.
    pub code: Vec<CodeSegment>,
    /// Its unwind table, if one was built.
    pub table: Option<TableFacts>,
}

impl<T> Module<T> {
    /// The same module with other texts.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> Module<U> {
        Module {
            path: other(TextKind::File, &self.path),
            build_id: self.build_id.as_ref().map(|text| other(TextKind::BuildId, text)),
            code: self.code.clone(),
            table: self.table,
        }
    }
}

/// A segment of a module that has code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeSegment {
    /// Its addresses, in the module's own space.
    pub svma: Range<Svma>,
    /// Where the first of them is in the file.
    pub offset: FileOffset,
}

/// The numbers of a module's unwind table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableFacts {
    /// Bytes of the module's code.
    pub code_bytes: u64,
    /// Those of them that CFI covers.
    pub covered_bytes: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Rows that the table cannot express.
    pub unsupported_rows: u64,
    /// Bytes that the table takes.
    pub table_bytes: u64,
}

impl TableFacts {
    /// The facts of a table of `table_bytes`.
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
