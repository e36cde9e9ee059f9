//! The half of a session that faces the kernel: a loaded object with tables, mappings and probes in it.

use std::time::Instant;

use anyhow::{Context, bail};

use super::tables::{BuiltTables, ModuleTables};
use super::{SLOT, hook};
use crate::bpf::{
    AttachPath, Attached, AttachedHook, Capacity, Changes, Kernel, Meaning, Probe, Settings, Storage, Walk,
};
use crate::collect::EventQueue;
use crate::config::Config;
use crate::target::{Epoch, History, Mappings, Modules, Target};

/// Room in the kernel for the mappings and tables of libraries that are loaded later.
const MAPPINGS_HEADROOM: usize = 4;
const TABLES_HEADROOM: usize = 2;
const MIN_MAPPINGS: usize = 1 << 10;
const MIN_TABLE_WORDS: usize = 1 << 20;

/// What a trace starts with, however it is attached.
pub(super) struct Prepared {
    pub(super) target: Target,
    pub(super) modules: Modules,
    pub(super) mappings: Mappings,
    pub(super) built: BuiltTables,
    pub(super) probes: Vec<Probe>,
}

/// A trace that goes on. Dropping it detaches.
pub(super) struct Live<'obj> {
    // Dropped first: probes must be gone before what they use.
    attached: Attached,
    _hook: Option<AttachedHook>,
    pub(super) events: EventQueue,
    pub(super) kernel: Kernel<'obj>,
    pub(super) tables: ModuleTables,
    pub(super) history: History,
    /// The mappings that were published last.
    pub(super) mappings: Mappings,
    /// When the last probe was attached.
    pub(super) started: Instant,
}

impl<'obj> Live<'obj> {
    /// Starts by the first way to attach that the kernel has.
    pub(super) fn start(
        storages: &'obj mut [Storage],
        config: &Config,
        prepared: &Prepared,
    ) -> anyhow::Result<Self> {
        let mut refused = None;
        for (storage, &path) in storages.iter_mut().zip(&config.attach) {
            match Self::attempt(storage, path, config, prepared) {
                Ok(live) => return Ok(live),
                Err(error) => {
                    tracing::debug!("{path:?} probes: {error:#}");
                    refused = Some(error);
                }
            }
        }
        let pid = prepared.target.pid();
        match refused {
            // Of the last way, which every kernel has.
            Some(error) => Err(error).with_context(|| format!("cannot trace process {pid}")),
            None => bail!("cannot trace process {pid}: no way to attach was given"),
        }
    }

    fn attempt(
        storage: &'obj mut Storage,
        path: AttachPath,
        config: &Config,
        prepared: &Prepared,
    ) -> anyhow::Result<Self> {
        let Prepared {
            target,
            modules,
            mappings,
            built,
            probes,
        } = prepared;
        let settings = Settings {
            walk: config.walk,
            attach: path,
            capacity: capacity(config, prepared),
        };
        let kernel = Kernel::load(storage, &settings)?;
        let mut live = Self {
            attached: Attached::default(),
            _hook: None,
            events: EventQueue::open(&kernel)?,
            kernel,
            tables: ModuleTables::default(),
            history: History::default(),
            mappings: Mappings::default(),
            started: Instant::now(),
        };
        let changes = live.kernel.publisher.changes(SLOT);
        live.publish(mappings.clone(), built, modules, changes)?;
        let pid = target.pid();
        live.kernel
            .add_process(pid, SLOT)
            .context("cannot name the target to the kernel side")?;
        let signed = i32::try_from(pid).context("the process id is out of range")?;
        live._hook = live.attach_hook(signed, modules);
        live.attached = live.kernel.attach(signed, probes)?;
        live.started = Instant::now();
        tracing::info!(
            "tracing {} ({pid}): {} probes by {} {path:?} links; Ctrl-C ends it with a last report",
            target.comm(),
            probes.len(),
            live.attached.link_count(),
        );
        Ok(live)
    }

    /// Without the hook, changes of the mappings are noticed by the walks that meet them.
    fn attach_hook(&self, pid: i32, modules: &Modules) -> Option<AttachedHook> {
        let hook = hook::find(&self.mappings, modules)?;
        let attached = self.kernel.attach_hook(pid, &hook);
        attached
            .inspect_err(|error| tracing::debug!("no events of mapping changes: {error}"))
            .ok()
    }

    /// Says to the kernel side that what was published last has `changes`. Returns whether these are all.
    pub(super) fn is_up_to_date(&self, changes: Changes) -> bool {
        let publisher = &self.kernel.publisher;
        publisher.confirm(SLOT, changes);
        publisher.changes(SLOT) == changes
    }

    /// Compiles the tables that `mappings` need and that are not known yet.
    pub(super) fn build(&self, mappings: &Mappings, modules: &Modules, walk: Walk) -> BuiltTables {
        self.tables.build(mappings, modules, walk)
    }

    /// Makes `mappings` and the tables in `built` known to the kernel.
    pub(super) fn publish(
        &mut self,
        mappings: Mappings,
        built: &BuiltTables,
        modules: &Modules,
        changes: Changes,
    ) -> anyhow::Result<()> {
        self.tables.store(built, modules, &mut self.kernel.tables);
        let meaning = match self.history.add(&mappings) {
            Epoch::Same => Meaning::Kept,
            Epoch::New => Meaning::Changed,
        };
        let list = self.tables.kernel_mappings(&mappings, modules);
        let publisher = &self.kernel.publisher;
        let published = publisher
            .publish(SLOT, &list, meaning, changes)
            .context("cannot publish mappings")?;
        if published.left_out > 0 {
            tracing::warn!(
                "{} executable mappings do not fit: stacks end there",
                published.left_out
            );
        }
        let late = published.since_change.map_or_else(String::new, |since| {
            format!(", {since:.1?} after the loader announced it")
        });
        tracing::debug!("mappings published with {} new unwind tables{late}", built.len());
        self.mappings = mappings;
        Ok(())
    }
}

fn capacity(config: &Config, prepared: &Prepared) -> Capacity {
    let fit = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mappings = prepared.mappings.entries().len() * MAPPINGS_HEADROOM;
    let table_words = prepared.built.words() * TABLES_HEADROOM;
    Capacity {
        table_words: fit(table_words.max(MIN_TABLE_WORDS)),
        mappings: fit(mappings.max(MIN_MAPPINGS)),
        processes: 1,
        stacks: config.max_stacks,
        blocks: config.max_blocks,
    }
}
