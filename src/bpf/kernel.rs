//! The loaded kernel side.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leak_report::model::Source;
use libbpf_rs::{Link, MapCore as _, MapHandle, OpenObject, ProgramInput};

use super::attach::{self, Attached, AttachedHook, Hook};
use super::block_facts::BlockFacts;
use super::calibration::Calibration;
use super::exceptions::Exceptions;
use super::frees::FreeNotes;
use super::hold::ExecStops;
use super::load;
use super::load_error::LoadError;
use super::memory::SharedWords;
use super::parts::Tolerance;
use super::probe::{AttachError, Probe, ProbedIn};
use super::processes::Processes;
use super::publish::Publisher;
use super::python::Pythons;
use super::refused;
use super::settings::{AttachPath, Settings};
use super::skeleton;
use super::stand_ins::StandIns;
use super::statistics::ProbePrograms;
use super::store::{Recorded, map_words, recorded};
use super::tables::TableStore;
use super::usdt::{self, UsdtProbe};

/// Storage for libbpf's object, owned by the caller; it outlives the [`Kernel`].
pub type Storage = MaybeUninit<OpenObject>;

/// The loaded kernel side.
pub struct Kernel<'obj> {
    pub(super) skeleton: skeleton::MemleakSkel<'obj>,
    attach: AttachPath,
    /// Array of `types::probed`.
    probed: SharedWords<AtomicU64>,
    /// Array of `types::usdt_site`.
    usdt_sites: SharedWords<AtomicU64>,
    event_cookies: MapHandle,
    pub tables: TableStore,
    pub publisher: Publisher,
    pub processes: Processes,
    pub exec_stops: ExecStops,
    /// Queue of `types::event`.
    pub(crate) events: MapHandle,
    /// Queue of `types::region_event` and `types::fault_event`; `None` where mapping calls are not followed.
    pub(crate) region_events: Option<MapHandle>,
    /// Queue of `types::deferred_walk`.
    pub(crate) deferred_walks: MapHandle,
    /// Number of copies of stacks that the kernel side keeps, to send only the parts that changed.
    pub(crate) sent_stacks: usize,
    pub stand_ins: StandIns,
    /// Notes of freed memory; `None` where none are made.
    pub(crate) free_notes: Option<Arc<FreeNotes>>,
    /// Arrays and tables that probes write, for `collect`.
    pub(crate) recorded: Arc<Recorded>,
}

impl<'obj> Kernel<'obj> {
    /// Loads the kernel side; attaches nothing.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; nothing stays loaded.
    pub fn load(storage: &'obj mut Storage, settings: &Settings) -> Result<Self, LoadError> {
        Self::load_but(storage, settings, &Exceptions::default())
    }

    /// Loads the kernel side, leaving out optional programs that the kernel refuses; `tolerance` records
    /// which. Each attempt takes one of `storages`.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; nothing stays loaded.
    pub fn load_tolerantly(
        storages: &mut slice::IterMut<'obj, Storage>,
        settings: &Settings,
        tolerance: &mut Tolerance,
    ) -> Result<Self, LoadError> {
        tolerance.load(|tolerance| {
            let storage = next_of(storages)?;
            Self::load_but(storage, &tolerance.adapted(settings), &tolerance.exceptions())
        })
    }

    pub(super) fn load_but(
        storage: &'obj mut Storage,
        settings: &Settings,
        exceptions: &Exceptions,
    ) -> Result<Self, LoadError> {
        let load::Loaded { skeleton, sizes } = load::load(storage, settings, exceptions)?;
        let maps = &skeleton.maps;
        let publisher = Publisher {
            mappings: map_words(&maps.bss_mappings)?,
            caches: map_words(&maps.bss_cache)?,
            processes: map_words(&maps.bss_processes)?,
            grace: MapHandle::try_from(&maps.grace)?,
            sizes,
        };
        publisher.reset();
        let processes = Processes {
            processes: map_words(&maps.bss_processes)?,
            instances: Arc::new(map_words(&maps.bss_instances)?),
            numbers: map_words(&maps.bss_numbers)?,
            owners: MapHandle::try_from(&maps.owners)?,
            slot_count: sizes.slots,
        };
        processes.reset();
        let region_events = settings.regions.map(|_| MapHandle::try_from(&maps.region_events));
        let mut recorded = recorded!(maps, &sizes, settings)?;
        recorded.facts = Some(BlockFacts::of(maps, settings.regions.is_none())?);
        if settings.announced {
            recorded.source = Source::Usdt;
        }
        let pythons = Pythons {
            layouts: map_words(&maps.bss_python)?,
            codes: map_words(&maps.bss_pycodes)?,
            chains: map_words(&maps.bss_pychains)?,
            frames: map_words(&maps.bss_pyframes)?,
            lines: map_words(&maps.bss_pylines)?,
            usage: map_words(&maps.bss_pyusage)?,
            known: Mutex::default(),
        };
        pythons.reserve_none();
        recorded.pythons = Some(pythons);
        let events = MapHandle::try_from(&maps.events)?;
        let deferred_walks = MapHandle::try_from(&maps.deferred_walks)?;
        let sent_stacks = maps.sent_stacks.max_entries() as usize;
        let stand_ins = StandIns {
            unused: MapHandle::try_from(&maps.stand_ins)?,
        };
        let probed = map_words(&maps.bss_probed)?;
        let usdt_sites = map_words(&maps.bss_usdt)?;
        let tables = TableStore::new(map_words(&maps.bss_tables)?);
        let mut kernel = Self {
            attach: settings.attach,
            probed,
            usdt_sites,
            event_cookies: MapHandle::try_from(&maps.event_cookies)?,
            tables,
            publisher,
            processes,
            exec_stops: ExecStops::new(map_words(&maps.bss_started)?),
            events,
            region_events: region_events.transpose()?,
            deferred_walks,
            sent_stacks,
            stand_ins,
            free_notes: None,
            recorded: Arc::new(recorded),
            skeleton,
        };
        if settings.frees.is_some() {
            let programs = kernel.region_programs().into_iter();
            let programs = programs.filter(|(_, is_second)| !is_second);
            let programs = programs.map(|(program, _)| program.as_fd());
            let notes = FreeNotes::new(&kernel.skeleton.maps, programs)?;
            kernel.free_notes = Some(Arc::new(notes));
        }
        Ok(kernel)
    }

    /// Python frames in the kernel side.
    pub fn pythons(&self) -> Option<&Pythons> {
        self.recorded.pythons.as_ref()
    }

    /// Marks all scratches as taken, or as free.
    #[cfg(test)]
    pub(crate) fn mark_scratches(&self, taken: bool) {
        use libbpf_rs::{MapCore, MapFlags};
        let scratches = &self.skeleton.maps.scratches;
        let mut value = vec![0; scratches.value_size() as usize];
        value[..8].copy_from_slice(&u64::from(taken).to_ne_bytes());
        for number in 0..scratches.max_entries() {
            scratches
                .update(&number.to_ne_bytes(), &value, MapFlags::ANY)
                .expect("a scratch can be written");
        }
    }

    /// Starts to follow fork, exec and exit of the traced processes; with `members`, also moves between
    /// cgroups, which can change the selection of processes.
    pub fn watch(&self, members: bool) -> Result<Watch, libbpf_rs::Error> {
        let programs = &self.skeleton.progs;
        let mut links = vec![
            programs.process_exit.attach()?,
            programs.process_exec.attach()?,
            programs.process_rename.attach()?,
        ];
        for (program, is_wanted) in [(&programs.process_fork, true), (&programs.cgroup_attach, members)] {
            if is_wanted && program.autoload() {
                links.push(program.attach()?);
            }
        }
        Ok(Watch(links))
    }

    /// Removes the blocks of ended instances from the block table; the totals of their stacks still count
    /// them.
    pub fn forget_ended(&self) -> Result<(), libbpf_rs::Error> {
        let program = &self.skeleton.progs.forget_blocks;
        if !program.autoload() {
            return Ok(());
        }
        program.test_run(ProgramInput::default()).map(drop)
    }

    /// Attaches all `probes` and `usdt` probes; attaches all or none.
    ///
    /// # Errors
    ///
    /// The first probe that could not be attached.
    pub fn attach(
        &self,
        probed_in: &ProbedIn<'_>,
        probes: &[Probe],
        usdt: &[UsdtProbe],
    ) -> Result<Attached, AttachError> {
        self.note_modules(probes);
        usdt::describe(&self.usdt_sites, usdt);
        let attached = attach::attach(
            &self.skeleton.progs,
            self.attach,
            probed_in,
            &self.event_cookies,
            attach::Wanted { probes, usdt },
        );
        if let Some(notes) = &self.free_notes {
            notes.begin_again();
        }
        attached
    }

    /// Returns whether a probe of one process is hit by that process only, not by others that share its
    /// memory.
    ///
    /// For links of many probes, the kernel compares processes since Linux 6.12 (`uprobe_prog_run` in
    /// kernel/trace/bpf_trace.c), and compared memory before. The program of a perf event runs for every
    /// process that hits its breakpoint.
    pub fn tells_processes_apart(&self) -> bool {
        self.attach != AttachPath::Perf && refused::version() >= (6, 12)
    }

    /// Records whether all probed functions are in one module. Runs before any of `probes` can be hit.
    fn note_modules(&self, probes: &[Probe]) {
        const SEVERAL: u64 = u64::MAX;
        // Holds 0 before the first probe, then the number of the only module plus 1, then `SEVERAL` for good.
        let Some(word) = self.probed.words().first() else {
            return;
        };
        for probe in probes {
            let module = u64::from(probe.cookie.module) + 1;
            let only = word.compare_exchange(0, module, Ordering::SeqCst, Ordering::SeqCst);
            if only.is_err_and(|known| known != module) {
                word.store(SEVERAL, Ordering::SeqCst);
            }
        }
    }

    /// Descriptors of the probe programs, for their run statistics.
    ///
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub fn probe_programs(&self) -> io::Result<ProbePrograms> {
        ProbePrograms::of(&self.skeleton.progs)
    }

    /// Probes functions of this process the way the target's are probed, to measure the cost of a trap.
    pub fn calibration(&self) -> anyhow::Result<Calibration> {
        Calibration::attach(&self.skeleton.progs, self.attach)
    }

    /// Returns whether the program for the loader's hook is loaded, by which a loader announces its changes.
    pub fn has_loader_hook(&self) -> bool {
        self.skeleton.progs.loader_hook.autoload()
    }

    /// Attaches to a hook.
    pub fn attach_hook(&self, probed_in: &ProbedIn<'_>, hook: &Hook) -> Result<AttachedHook, AttachError> {
        attach::attach_hook(
            &self.skeleton.progs,
            self.attach,
            probed_in,
            &self.event_cookies,
            hook,
        )
    }
}

/// Takes the next storage for an attempt to load.
pub(super) fn next_of<'obj>(
    storages: &mut slice::IterMut<'obj, Storage>,
) -> Result<&'obj mut Storage, LoadError> {
    let too_many = || libbpf_rs::Error::from_raw_os_error(libc::ENOBUFS);
    Ok(storages.next().ok_or_else(too_many)?)
}

/// Links of the programs that follow processes; dropping it detaches them.
pub struct Watch(#[allow(dead_code, reason = "held for its drop")] Vec<Link>);
