//! Owns the files of mapped code, and their unwind tables in the kernel.

use anyhow::Context;
use unwind_tables::mapping::Mapping;
use unwind_tables::walk::Unwind;

use super::roster::Roster;
use super::tables::{BuiltTables, Files, ModuleTables};
use super::unreadable::UnreadableLog;
use crate::bpf::{Kernel, Walk};
use crate::process::{JvmCode, Mappings, ModuleId, Modules};

/// Files of code, and what walks need of them.
pub(super) struct Code {
    modules: Modules,
    tables: ModuleTables,
    walk: Walk,
    unreadable: UnreadableLog,
}

impl Code {
    pub(super) fn new(modules: Modules, walk: Walk) -> Self {
        Self {
            modules,
            tables: ModuleTables::default(),
            walk,
            unreadable: UnreadableLog::default(),
        }
    }

    pub(super) fn modules(&self) -> &Modules {
        &self.modules
    }

    pub(super) fn modules_mut(&mut self) -> &mut Modules {
        &mut self.modules
    }

    pub(super) fn tables(&self) -> &ModuleTables {
        &self.tables
    }

    /// How stacks are walked.
    pub(super) fn unwind(&self) -> Unwind {
        match self.walk {
            Walk::Fp => Unwind::Fp,
            // Without a walk, there are no stacks.
            Walk::Dwarf | Walk::Off | Walk::Kernel => Unwind::Dwarf,
        }
    }

    /// Stores tables that were built before the trace; those that `mapped` need stay.
    pub(super) fn store(
        &mut self,
        built: &BuiltTables,
        mapped: &[Mappings],
        kernel: &mut Kernel<'_>,
    ) -> anyhow::Result<()> {
        let used = self.tables.used(mapped, &self.modules);
        let stored = self.tables.store(built, &self.modules, &used, kernel);
        stored.context("cannot store unwind tables")
    }

    /// Builds and stores the missing tables that `mappings` need; those that other instances need stay.
    /// Returns how many were built.
    pub(super) fn provide_tables(
        &mut self,
        mappings: &Mappings,
        roster: &Roster,
        kernel: &mut Kernel<'_>,
    ) -> anyhow::Result<usize> {
        let mapped = roster.mappings().chain([mappings]);
        let used = self.tables.used(mapped, &self.modules);
        let is_used = |module| used.contains(&module);
        kernel.tables.touch(is_used);
        let store = &kernel.tables;
        let has_room = |words| store.has_room(words, is_used);
        let files = Files {
            modules: &self.modules,
            roots: &|| roster.debug_roots(),
        };
        let built = self.tables.build([mappings], files, self.walk, has_room);
        let stored = self.tables.store(&built, &self.modules, &used, kernel);
        stored.context("cannot store unwind tables")?;
        Ok(built.len())
    }

    /// Provides the saves of a module; tables that instances and `more` need stay. Returns as
    /// [`ModuleTables::provide_saves`].
    pub(super) fn provide_saves(
        &mut self,
        module: ModuleId,
        more: Option<&Mappings>,
        roster: &Roster,
        kernel: &mut Kernel<'_>,
    ) -> anyhow::Result<bool> {
        let mapped = roster.mappings().chain(more);
        let used = self.tables.used(mapped, &self.modules);
        let files = Files {
            modules: &self.modules,
            roots: &|| roster.debug_roots(),
        };
        let provided = self.tables.provide_saves(module, files, &used, kernel);
        provided.context("cannot store unwind tables")
    }

    /// Mappings in the form that walks need, with code of a JVM.
    pub(super) fn kernel_mappings(&self, mappings: &Mappings, jvm: &JvmCode) -> Vec<Mapping> {
        self.tables.kernel_mappings(mappings, jvm, &self.modules)
    }

    /// Logs which files of `mappings` have no table because they could not be read.
    pub(super) fn log_unreadable(&mut self, mappings: &Mappings) {
        self.unreadable.log(mappings, &self.modules);
    }
}
