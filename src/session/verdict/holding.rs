//! Holders of the blocks of a process, with names: found by one more marking, once a verdict is settled.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::time::Instant;

use unwind_tables::addr::{Avma, contains};

use super::roots::{Objects, Roots};
use super::vtables::{class_in_memory, class_of_symbol};
use crate::bpf::ThreadState;
use crate::process::maps::MapsEntry;
use crate::reach::Memory;
use crate::reach::bits::Bits;
use crate::reach::chains::Chain;
use crate::reach::heap::Block;
use crate::reach::holders::{self, Holders, Missing, Origin, Search};
use crate::reach::judge::Sight;
use crate::reach::places::{Place, Places};
use crate::reach::roots::{Thread, roots};
use crate::symbolize::{VariablePlace, Variables};
use leak_report::model::{Amount, Inside, LookedAt, Root, RootKind};

/// Holders of a process's blocks, by stack record.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Holding {
    /// Chains refer to these by number.
    pub(in crate::session) roots: Vec<Root>,
    pub(in crate::session) by_stack: HashMap<u32, OfStack>,
    /// Blocks to which only pointers into them lead, by the kind of pointer.
    pub(in crate::session) inside: BTreeMap<Inside, Amount>,
}

/// Holders and classes of the blocks of a stack record.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct OfStack {
    /// Amounts of blocks by chain; `None` for chains that were too many to tell apart.
    pub(in crate::session) by: Vec<(Option<Chain>, Amount)>,
    pub(in crate::session) retained: Option<Amount>,
    pub(in crate::session) classes: HashMap<String, Amount>,
    /// Set if not all of the blocks were looked at for their classes, or if that was not for a verdict.
    pub(in crate::session) looked: Option<LookedAt>,
}

/// Size of the address of a class's table of virtual functions, with which its objects begin, in bytes.
pub(in crate::session) const FIRST_BYTES: u64 = 8;

/// Process for whose blocks holders are looked for.
pub(super) struct Looked<'a> {
    pub(super) pid: u32,
    pub(super) sight: &'a Sight<'a>,
    /// Memory that is unused according to the verdict.
    pub(super) idle: &'a [std::ops::Range<Avma>],
    pub(super) mappings: &'a [MapsEntry],
    pub(super) threads: &'a [Thread],
    pub(super) states: &'a [ThreadState],
    /// Words that the kernel keeps.
    pub(super) kept: &'a [u64],
    pub(super) deadline: Instant,
}

/// Finds the holders, and which blocks were reached.
///
/// # Errors
///
/// There are too many blocks, or no time is left.
pub(super) fn find(looked: &Looked<'_>) -> Result<(Holding, Bits), Missing> {
    let began = Instant::now();
    let Looked {
        pid,
        sight,
        mappings,
        threads,
        ..
    } = *looked;
    let mut objects = Objects::of(pid);
    let data = objects.memory(|segment| !segment.executable);
    let storage = objects.storage();
    let loaded = objects.memory(|_| true);
    let places = Places::of(mappings, &data, threads, storage, sight.heap);
    let ids: Vec<_> = looked.states.iter().map(|state| (state.tid, state.tp)).collect();
    let mut names = Roots::new(&mut objects, &places, pid, mappings, &ids);
    let (registers, kept) = words(looked, &mut names);
    let all: Vec<_> = roots(sight.pages, sight.heap, looked.idle, sight.dead).collect();
    let origins = origins(&places, &all, &registers, &kept);
    let tables: Vec<_> = loaded.iter().map(|(range, _)| range.clone()).collect();
    let search = Search {
        heap: sight.heap,
        memory: sight.memory,
        origins: &origins,
        tables: &tables,
        deadline: looked.deadline,
    };
    let mut found = holders::find(&search, &mut |at| names.at(at))?;
    let reached = std::mem::take(&mut found.reached);
    let pointers = found.pointers;
    let marked = began.elapsed();
    let mut classes = Classes::new(pid, names.objects, &loaded);
    let classes = classes.of(&found.firsts);
    let holding = Holding::new(found, classes, names.named());
    tracing::debug!(
        "holders of {} blocks of process {pid}, with {pointers} pointers, found in {marked:.1?}, named in {:.1?}",
        sight.heap.blocks().len(),
        began.elapsed().saturating_sub(marked)
    );
    Ok((holding, reached))
}

/// Words, each with the number of its root.
type Words = Vec<(u64, u32)>;

/// Classes of some blocks (ascending) of process `pid`, by address.
pub(super) fn classes_of(pid: u32, memory: &dyn Memory, blocks: &[Block]) -> HashMap<Avma, String> {
    let mut objects = Objects::of(pid);
    let loaded = objects.memory(|_| true);
    let mut classes = Classes::new(pid, &mut objects, &loaded);
    let large = blocks.iter().filter(|block| block.size >= FIRST_BYTES);
    let firsts = large.map(|block| block.address..block.address.wrapping_add(FIRST_BYTES));
    let firsts: Vec<_> = firsts.collect();
    let mut found = HashMap::new();
    memory.visit(&firsts, &mut |at, words| {
        if let Some(class) = words.first().and_then(|&table| classes.by_table(table)) {
            found.insert(at, class);
        }
    });
    found
}

/// Classes of objects of process `pid`, by the words that they begin with. Words that begin no object have
/// none.
pub(in crate::session) fn classes_by_word(pid: u32, words: &HashSet<u64>) -> HashMap<u64, String> {
    // Spares reading the process's files.
    if words.is_empty() {
        return HashMap::new();
    }
    let mut objects = Objects::of(pid);
    let loaded = objects.memory(|_| true);
    let mut classes = Classes::new(pid, &mut objects, &loaded);
    let with_class = |&word: &u64| Some((word, classes.by_table(word)?));
    words.iter().filter_map(with_class).collect()
}

/// Words in registers, and words that the kernel keeps, each with its root.
fn words(looked: &Looked<'_>, names: &mut Roots<'_>) -> (Words, Words) {
    let leads = |word: &u64| looked.sight.heap.at(*word).is_some();
    let mut registers = Vec::new();
    for (state, thread) in looked.states.iter().zip(0..) {
        for &word in state.words.iter().filter(|word| leads(word)) {
            registers.push((word, names.without_address(RootKind::Registers, thread)));
        }
    }
    let kept = looked.kept.iter().filter(|word| leads(word));
    let kept = kept.map(|&word| (word, names.without_address(RootKind::Kernel, 0)));
    (registers, kept.collect())
}

/// Kinds of roots, with the most telling names first.
fn origins<'a>(
    places: &Places,
    all: &[std::ops::Range<Avma>],
    registers: &'a [(u64, u32)],
    kept: &'a [(u64, u32)],
) -> Vec<Origin<'a>> {
    let within = |is: &dyn Fn(Place) -> bool, words: &'a [(u64, u32)]| Origin {
        ranges: places.within(all, is),
        words,
    };
    vec![
        // The program's own data, before that of its libraries.
        within(&|place| place == Place::Data(0), &[]),
        within(&|place| matches!(place, Place::Data(1..)), &[]),
        within(&|place| matches!(place, Place::ThreadLocal(_)), &[]),
        within(&|place| matches!(place, Place::Stack(_)), &[]),
        within(&|_| false, registers),
        within(&|_| false, kept),
        within(&|place| matches!(place, Place::Mapped(_)), &[]),
        within(&|place| place == Place::Untraced, &[]),
    ]
}

impl Holding {
    fn new(found: Holders, classes: HashMap<(u32, String), Amount>, roots: Vec<Root>) -> Self {
        let mut by_stack: HashMap<u32, OfStack> = HashMap::new();
        for ((stack, chain), amount) in found.held {
            let chain = found.chains.get(chain);
            by_stack.entry(stack).or_default().by.push((chain, amount));
        }
        for (stack, retained) in found.retained.into_iter().flatten() {
            by_stack.entry(stack).or_default().retained = Some(retained);
        }
        for ((stack, class), amount) in classes {
            by_stack.entry(stack).or_default().classes.insert(class, amount);
        }
        Self {
            roots,
            by_stack,
            inside: found.inside,
        }
    }
}

/// Finds classes by the tables of virtual functions that blocks begin with.
struct Classes<'a> {
    memory: Option<File>,
    objects: &'a mut Objects,
    data: &'a [(std::ops::Range<Avma>, usize)],
    known: HashMap<u64, Option<String>>,
}

impl<'a> Classes<'a> {
    fn new(pid: u32, objects: &'a mut Objects, data: &'a [(std::ops::Range<Avma>, usize)]) -> Self {
        Self {
            memory: File::open(format!("/proc/{pid}/mem")).ok(),
            objects,
            data,
            known: HashMap::new(),
        }
    }

    /// Blocks by stack and class.
    fn of(&mut self, firsts: &HashMap<(u32, u64), Amount>) -> HashMap<(u32, String), Amount> {
        let mut classes: HashMap<_, Amount> = HashMap::new();
        for (&(stack, table), &amount) in firsts {
            if let Some(class) = self.by_table(table) {
                let sum = classes.entry((stack, class)).or_default();
                *sum = *sum + amount;
            }
        }
        classes
    }

    /// Class of objects that begin with the address `table`.
    fn by_table(&mut self, table: u64) -> Option<String> {
        if !self.known.contains_key(&table) {
            let class = self.find(table);
            self.known.insert(table, class);
        }
        self.known.get(&table)?.clone()
    }

    fn find(&mut self, table: u64) -> Option<String> {
        let object = self.object(table)?;
        let svma = self.objects.svma(object, Avma::new(table))?;
        let variable = self.objects.variables(object).and_then(|variables: &Variables| {
            let variable = variables.find(VariablePlace::Memory(svma))?;
            match variable.begin {
                VariablePlace::Memory(begin) => Some((variable.mangled, svma - begin)),
                VariablePlace::ThreadLocal(_) => None,
            }
        });
        let by_symbol = variable.and_then(|(name, offset)| class_of_symbol(&name, offset));
        by_symbol.or_else(|| class_in_memory(self.memory.as_ref()?, table, |at| self.object(at).is_some()))
    }

    /// The object whose data an address is in.
    fn object(&self, address: u64) -> Option<usize> {
        let after = self
            .data
            .partition_point(|(range, _)| range.start.get() <= address);
        let (range, object) = self.data.get(after.checked_sub(1)?)?;
        contains(range, Avma::new(address)).then_some(*object)
    }
}
