//! Reports without names: what functions, files, processes and hosts are called is replaced by meaningless names.
//!
//! The same name always becomes the same meaningless one, also in other recordings that are made on this machine, so
//! that they can be compared. Elsewhere nobody can try out names and see what becomes of them, since the machine's own id
//! (`/etc/machine-id`), which is to be kept confidential, is part of the reckoning.
//!
//! What stays: amounts, times, process ids, how stacks are built and how they end, addresses, line numbers, allocators
//! that everybody knows (`malloc`). Build-ids are replaced as names are: they would lead everyone who has the file to
//! its names.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use crate::allocator::FUNCTIONS;
use crate::collect::RegionCall;
use crate::model::Name;
use crate::model::leak::kernel_frames::Kind;
use crate::model::leak::{EndGroup, ModuleSteps};
use crate::model::{Frame, KernelFacts, KindTotals, Location, ModuleFacts, Report, Stack, TargetFacts};
use crate::model::{InlinedFrame, Symbol, Symbolized};

/// What a name is of: names of two sorts have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Function,
    Source,
    /// Of modules and executables.
    File,
    Process,
    Kernel,
    BuildId,
}

impl Sort {
    fn word(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Source => "source",
            Self::File => "file",
            Self::Process => "process",
            Self::Kernel => "kernel",
            Self::BuildId => "build",
        }
    }
}

/// Replaces names.
pub struct Anonymizer {
    key: [u8; 16],
    /// What became of what the report at hand shares among its parts, by where it lies.
    modules: HashMap<*const ModuleFacts, Arc<ModuleFacts>>,
    names: HashMap<*const Symbolized, Arc<Symbolized>>,
}

impl Anonymizer {
    /// By this machine's id; without one by what is random, and then no two of them do the same.
    pub fn of_this_machine() -> Self {
        let id = fs::read_to_string("/etc/machine-id").ok();
        let id = id.and_then(|id| u128::from_str_radix(id.trim(), 16).ok());
        let key = id.filter(|&id| id != 0).unwrap_or_else(|| {
            tracing::warn!("no /etc/machine-id: the names cannot be compared with those of other recordings");
            let random = || u128::from(RandomState::new().build_hasher().finish());
            random() << 64 | random()
        });
        Self::new(key.to_be_bytes())
    }

    fn new(key: [u8; 16]) -> Self {
        Self {
            key,
            modules: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// The same report without names.
    pub fn report(&mut self, report: &Report) -> Report {
        self.modules.clear();
        self.names.clear();
        let Report {
            targets,
            stacks,
            ends,
            steps,
            kernel,
            // Everything else has numbers only.
            time,
            read_at,
            elapsed,
            unwind,
            top,
            order,
            names,
            depth,
            quantity,
            compared,
            sampling,
            events,
            losses,
            completeness,
            overhead,
            own,
        } = report;
        Report {
            targets: targets.iter().map(|target| self.target(target)).collect(),
            stacks: stacks.iter().map(|stack| self.stack(stack)).collect(),
            ends: ends.iter().map(|group| self.end_group(group)).collect(),
            steps: steps.iter().map(|steps| self.steps(steps)).collect(),
            kernel: kernel.as_ref().map(|kernel| self.kernel(kernel)),
            time: *time,
            read_at: *read_at,
            elapsed: *elapsed,
            unwind: *unwind,
            top: *top,
            order: *order,
            names: *names,
            depth: *depth,
            quantity: *quantity,
            compared: *compared,
            sampling: *sampling,
            events: *events,
            losses: losses.clone(),
            completeness: completeness.clone(),
            overhead: *overhead,
            own: *own,
        }
    }

    fn hash(&self, sort: Sort, name: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(b"memleak ");
        hasher.write(sort.word().as_bytes());
        hasher.write(b" ");
        hasher.write(name);
        hasher.finish()
    }

    /// 48 bits: of a hundred thousand names, two become the same one time in fifty thousand.
    fn replaced(&self, sort: Sort, name: impl AsRef<OsStr>) -> String {
        let hash = self.hash(sort, name.as_ref().as_bytes()) >> 16;
        format!("{}_{hash:012x}", sort.word())
    }

    /// Names in brackets are the kernel's for what is no file.
    fn path(&self, path: &PathBuf) -> PathBuf {
        let is_file = !path.as_os_str().as_bytes().starts_with(b"[");
        match is_file {
            true => format!("/{}", self.replaced(Sort::File, path)).into(),
            false => path.clone(),
        }
    }

    fn build_id(&self, build_id: &str) -> String {
        format!("{:016x}", self.hash(Sort::BuildId, build_id.as_bytes()))
    }

    fn allocator(&self, name: &Name) -> Name {
        let calls = [
            RegionCall::Mmap,
            RegionCall::Mremap,
            RegionCall::Brk,
            RegionCall::Munmap,
        ];
        let mut known = FUNCTIONS.iter().map(|function| function.name.as_ref());
        let mut calls = calls.into_iter().map(RegionCall::name);
        let mut kinds = Kind::ALL.into_iter().map(Kind::name);
        let is_known = known.any(|known| known == name)
            || calls.any(|call| call == name)
            || kinds.any(|kind| kind == name);
        match is_known || name == "?" {
            true => name.clone(),
            false => self.replaced(Sort::Function, &**name).into(),
        }
    }

    fn target(&self, target: &TargetFacts) -> TargetFacts {
        let TargetFacts {
            pid,
            instance,
            parent,
            comm,
            exe,
            ended,
            memory,
        } = target;
        TargetFacts {
            pid: *pid,
            instance: *instance,
            parent: *parent,
            comm: self.replaced(Sort::Process, comm),
            exe: exe.as_ref().map(|exe| self.path(exe)),
            ended: *ended,
            memory: *memory,
        }
    }

    fn module(&mut self, module: &Arc<ModuleFacts>) -> Arc<ModuleFacts> {
        if let Some(known) = self.modules.get(&Arc::as_ptr(module)) {
            return Arc::clone(known);
        }
        let ModuleFacts {
            path,
            build_id,
            code,
            table,
        } = module.as_ref();
        let replaced = Arc::new(ModuleFacts {
            path: self.path(path),
            build_id: build_id.as_ref().map(|build_id| self.build_id(build_id)),
            code: code.clone(),
            table: *table,
        });
        self.modules.insert(Arc::as_ptr(module), Arc::clone(&replaced));
        replaced
    }

    fn stack(&mut self, stack: &Stack) -> Stack {
        let frames = stack.frames.iter().map(|frame| self.frame(frame)).collect();
        let end_at = stack.end_at.as_ref().map(|at| self.location(at));
        let Stack {
            allocator,
            frames: _,
            end_at: _,
            pid,
            instance,
            ended,
            kind,
            outstanding,
            allocated,
            recent,
            lost,
            end,
            blocks,
            // The reader's, and a name.
            suppressed_by: _,
        } = stack;
        Stack {
            allocator: self.allocator(allocator),
            frames,
            end_at,
            pid: *pid,
            instance: *instance,
            ended: *ended,
            kind: *kind,
            outstanding: *outstanding,
            allocated: *allocated,
            recent: *recent,
            lost: *lost,
            end: *end,
            blocks: blocks.clone(),
            suppressed_by: None,
        }
    }

    fn location(&mut self, location: &Location) -> Location {
        let Location { pc, place } = location;
        Location {
            pc: *pc,
            place: place.as_ref().map(|(module, svma)| (self.module(module), *svma)),
        }
    }

    fn frame(&mut self, frame: &Frame) -> Frame {
        let Frame {
            at,
            exact,
            found_by,
            names,
        } = frame;
        Frame {
            at: self.location(at),
            exact: *exact,
            found_by: *found_by,
            names: self.symbolized(names),
        }
    }

    fn symbolized(&mut self, names: &Arc<Symbolized>) -> Arc<Symbolized> {
        if let Some(known) = self.names.get(&Arc::as_ptr(names)) {
            return Arc::clone(known);
        }
        let Symbolized {
            symbol,
            file,
            line,
            inlined,
            gap,
        } = names.as_ref();
        let symbol = symbol.as_ref().map(|Symbol { name, offset }| Symbol {
            name: self.replaced(Sort::Function, name),
            offset: *offset,
        });
        let inlined = inlined
            .iter()
            .map(|InlinedFrame { symbol, file, line }| InlinedFrame {
                symbol: symbol
                    .as_ref()
                    .map(|symbol| self.replaced(Sort::Function, symbol)),
                file: file.as_ref().map(|file| self.replaced(Sort::Source, file)),
                line: *line,
            });
        let replaced = Arc::new(Symbolized {
            symbol,
            file: file.as_ref().map(|file| self.replaced(Sort::Source, file)),
            line: *line,
            inlined: inlined.collect(),
            gap: *gap,
        });
        self.names.insert(Arc::as_ptr(names), Arc::clone(&replaced));
        replaced
    }

    fn end_group(&mut self, group: &EndGroup<Arc<ModuleFacts>>) -> EndGroup<Arc<ModuleFacts>> {
        EndGroup {
            module: group.module.as_ref().map(|module| self.module(module)),
            ..group.clone()
        }
    }

    fn steps(&mut self, steps: &ModuleSteps<Arc<ModuleFacts>>) -> ModuleSteps<Arc<ModuleFacts>> {
        ModuleSteps {
            module: steps.module.as_ref().map(|module| self.module(module)),
            ..steps.clone()
        }
    }

    fn kernel(&self, kernel: &KernelFacts) -> KernelFacts {
        let KernelFacts { release, kinds } = kernel;
        let kind = |kind: &KindTotals| KindTotals {
            allocator: self.allocator(&kind.allocator),
            ..kind.clone()
        };
        KernelFacts {
            release: self.replaced(Sort::Kernel, release),
            kinds: kinds.iter().map(kind).collect(),
        }
    }
}
