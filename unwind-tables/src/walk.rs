//! The reference walker: what `bpf/walk/unwind.h` does, function by function, over the same image.
//!
//! The specification of the walk in the kernel, without the fast paths, which must not change a result.

mod aarch64;
mod call;
mod generated;
mod kept;
mod mapping_stop;
mod outcome;
mod own_frame;
mod program;
mod registers;
mod steps;

use crate::addr::Avma;
use crate::architecture::Architecture;
use crate::image::ImageView;
use crate::mapping;
use crate::packed::{FRAMED, PackedRule, kind, stop};
use crate::program::{FP, LR, Opcode, REGISTERS, SP};

pub use crate::mapping::{ADDRESS_BITS, Mapping, MappingKind};
pub use call::is_branch_with_link;
pub use kept::{INNERMOST_FRAMES, LeftOut, MAX_DEPTH, MAX_FRAMES, OUTERMOST_FRAMES, in_order};
pub use outcome::{End, FoundBy};
pub use own_frame::{JUMPS_LOOKED_FOR, MAX_FRAME_SLOTS, RETURN_LOOKED_FOR};

use call::Returns;
use generated::Trial;

/// Maximum distance, in bytes, from a frame's stack pointer to its saved frame pointer that a frame-pointer
/// step accepts.
pub const MAX_FP_DISTANCE: u64 = 1 << 20;
/// Maximum number of frames that one walk inspects, in total, to find saved registers. A malicious table can
/// require registers in each of thousands of frames, many times, that no inner frame has saved: millions of
/// inspections. Half a million allocations of real programs took none, code that was written to need them
/// takes 6, and a stack of [`MAX_DEPTH`] frames that each find a register in the next takes one less than
/// this maximum.
pub const MAX_LOOKS: u32 = 4096;
/// Maximum number of times that a walk goes down to another stack, at lower addresses, because CFI computes
/// the CFA from a register other than the stack pointer. After a step by the frame pointer it no longer does:
/// such CFI is then no more reliable than the frame pointer.
pub const MAX_STACK_SWITCHES: u32 = 8;

/// Methods of unwinding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Unwind {
    /// Unwind tables, and the frame pointer where there is no CFI.
    Dwarf,
    /// The frame pointer only.
    Fp,
}

/// Data that a walk has about the process.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// Architecture of the process's code.
    pub architecture: Architecture,
    /// Words of all images, concatenated.
    pub words: &'a [u32],
    /// Executable mappings, in ascending order, not overlapping.
    pub mappings: &'a [Mapping],
    /// Method of unwinding.
    pub unwind: Unwind,
    /// True if a change of the mappings was announced that `mappings` does not contain yet.
    pub changing: bool,
    /// Return addresses that return probes have replaced.
    pub return_probes: ReturnProbes<'a>,
}

/// Return addresses that the kernel has replaced for return probes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReturnProbes<'a> {
    /// Address that replaces them; 0 without return probes.
    pub trampoline: Avma,
    /// Their slots and original values.
    pub replaced: &'a [(Avma, Avma)],
}

/// Registers at the start of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Return address into the first frame.
    pub pc: Avma,
    /// General registers after that return, by their numbers in rule programs.
    pub general: [u64; REGISTERS as usize],
}

impl Registers {
    /// Returns registers with these values and 0 for the others.
    pub fn new(pc: Avma, sp: Avma, fp: Avma) -> Self {
        let mut general = [0; REGISTERS as usize];
        general[usize::from(SP)] = sp.get();
        general[usize::from(FP)] = fp.get();
        Self { pc, general }
    }
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Return address, or the interrupted address for the caller of a signal frame.
    pub pc: Avma,
    /// Way in which it was found.
    pub found_by: FoundBy,
    /// True if `pc` is exact: the instruction was interrupted, or a signal handler returns to it. Otherwise
    /// the instruction before `pc` is the call that the frame is in.
    pub exact: bool,
}

/// A finished walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Frames that are kept, innermost first. Each lies in an executable mapping.
    pub frames: Vec<Frame>,
    /// Frames that are not kept.
    pub left_out: Option<LeftOut>,
    /// Cause of the walk's end.
    pub end: End,
    /// Address where the walk ended.
    pub end_pc: Avma,
    /// Address in an object without an image of saves, which the walk needs.
    pub saves_wanted: Option<Avma>,
}

impl Stack {
    /// Number of frames, including those that are not kept.
    pub fn depth(&self) -> usize {
        let left_out = self.left_out.map_or(0, |left_out| left_out.frames as usize);
        self.frames.len() + left_out
    }
}

/// Walks the stack from `start`. `read` returns the 8 bytes at an address, or `None` for a fault.
pub fn walk(tables: Tables<'_>, start: Registers, read: impl FnMut(Avma) -> Option<u64>) -> Stack {
    walk_linked(tables, start, None, read)
}

/// Walks as [`walk`] does, from a frame whose link register is `link` (AArch64): one that is running, and not
/// in a call.
pub fn walk_linked(
    tables: Tables<'_>,
    start: Registers,
    link: Option<u64>,
    read: impl FnMut(Avma) -> Option<u64>,
) -> Stack {
    let mut walk = Walk::new(tables, start, read);
    walk.lr = link;
    loop {
        if let Err(end) = walk.step() {
            let left_out = kept::keep(&mut walk.frames);
            return Stack {
                frames: walk.frames,
                left_out,
                end,
                end_pc: walk.pc,
                saves_wanted: walk.saves_wanted,
            };
        }
    }
}

/// A frame's caller, as one step of a walk finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its program counter.
    pub pc: Avma,
    /// Its stack pointer.
    pub sp: Avma,
    /// Its frame pointer.
    pub fp: Avma,
    /// True if `pc` is exact: the instruction was interrupted, and does not follow a call.
    pub interrupted: bool,
}

/// Takes one step of a walk: the caller of the frame that executes the instruction at `frame.pc`.
///
/// # Errors
///
/// The cause, if there is no caller.
pub fn caller(
    tables: Tables<'_>,
    frame: Registers,
    read: impl FnMut(Avma) -> Option<u64>,
) -> Result<Caller, End> {
    let mut walk = Walk::new(tables, frame, read);
    walk.pc_adjust = 0;
    walk.lr = Some(frame.general[usize::from(LR)]);
    walk.step()?;
    if walk.trial.is_some() {
        return Err(End::AnonymousCode);
    }
    Ok(Caller {
        pc: walk.pc,
        sp: walk.sp,
        fp: walk.fp,
        interrupted: walk.pc_adjust == 0,
    })
}

struct Walk<'a, R> {
    tables: Tables<'a>,
    read: R,
    pc: Avma,
    sp: Avma,
    fp: Avma,
    /// 1 if `pc` is a return address, which is looked up one byte lower, in the call before it; 0 if it is
    /// exact.
    pc_adjust: u64,
    found_by: FoundBy,
    frames: Vec<Frame>,
    /// Stack pointer and frame pointer of each frame.
    bases: Vec<(Avma, Avma)>,
    at_probe: [u64; REGISTERS as usize],
    saves_wanted: Option<Avma>,
    /// Frames that may still be inspected for saved registers.
    looks_left: u32,
    /// AArch64's link register; known only if the frame was running, as a call overwrites it.
    lr: Option<u64>,
    /// Set while frames are on trial.
    trial: Option<Trial>,
    /// The frame pointer of the current frame may be another frame's.
    is_doubtful: bool,
    /// The frame pointer of an earlier frame may have been another's.
    may_lack_callers: bool,
    /// Number of steps that may still go to a stack at lower addresses.
    switches_left: u32,
}

/// Result of a step, which either gets to the caller or ends the walk.
type Step = Result<(), End>;

impl<'a, R: FnMut(Avma) -> Option<u64>> Walk<'a, R> {
    fn new(tables: Tables<'a>, start: Registers, read: R) -> Self {
        Self {
            tables,
            read,
            pc: start.pc,
            sp: Avma::new(start.general[usize::from(SP)]),
            fp: Avma::new(start.general[usize::from(FP)]),
            pc_adjust: 1,
            found_by: FoundBy::Probe,
            frames: Vec::new(),
            bases: Vec::new(),
            at_probe: start.general,
            saves_wanted: None,
            looks_left: MAX_LOOKS,
            lr: None,
            trial: None,
            is_doubtful: false,
            may_lack_callers: false,
            switches_left: MAX_STACK_SWITCHES,
        }
    }

    fn image(&self, at: u32) -> ImageView<'a> {
        ImageView {
            words: self.tables.words,
            at,
        }
    }

    /// Looks up the rule of one frame, records the frame, and goes to its caller.
    fn step(&mut self) -> Step {
        let rule = self.lookup_rule();
        self.settle_trial(rule);
        self.step_by(rule).map_err(|end| self.end_of_trial(end))
    }

    fn step_by(&mut self, rule: PackedRule) -> Step {
        match end_without_frame(rule) {
            Some(_) if self.is_trampoline(self.pc) => return self.put_back_return_address(),
            Some(end) => return Err(end),
            None => {}
        }
        self.push_frame(rule)?;
        match rule.kind() {
            kind::SP | kind::FP | kind::LONE if self.tables.architecture == Architecture::Aarch64 => {
                self.apply_record(rule)
            }
            kind::SP | kind::FP => self.apply_offset(rule),
            kind::PLT => self.apply_plt(rule),
            kind::DRAP => self.apply_drap(rule),
            kind::WIDE => self.apply_program(rule.wide_index()),
            kind::CHAIN => self.apply_fp(End::FpChainEnd),
            _ => self.apply_stop(rule),
        }
    }

    /// Restores a return address that a return probe replaced by its trampoline. It is identified by the
    /// stack pointer at the function's entry: the slot of the return address or, on AArch64, the start of the
    /// frame.
    fn put_back_return_address(&mut self) -> Step {
        let slot = match self.tables.architecture {
            Architecture::X86_64 => self.sp.wrapping_sub(8),
            Architecture::Aarch64 if self.sp_is_known() => self.sp,
            Architecture::Aarch64 => return Err(End::UretprobeTrampoline),
        };
        let mut replaced = self.tables.return_probes.replaced.iter();
        let known = replaced.find(|&&(known, _)| known == slot);
        let address = known
            .map(|&(_, address)| address)
            .filter(|&address| address != self.pc);
        self.pc = address
            .filter(|&address| address != Avma::new(0))
            .ok_or(End::UretprobeTrampoline)?;
        Ok(())
    }

    /// Returns whether `address` is the return probes' trampoline, which can be newer than the mappings.
    fn is_trampoline(&self, address: Avma) -> bool {
        address != Avma::new(0) && address == self.tables.return_probes.trampoline
    }

    fn lookup_rule(&mut self) -> PackedRule {
        let address = self.pc.wrapping_sub(self.pc_adjust);
        let Some(&mapping) = mapping::find(self.tables.mappings, address) else {
            return stop_rule(self.without_mapping());
        };
        if !mapping.is_current(self.tables.changing, &mut self.read) {
            return stop_rule(mapping_stop::STALE);
        }
        if mapping.kind == MappingKind::Trampoline {
            return stop_rule(mapping_stop::TRAMPOLINE);
        }
        if self.tables.unwind == Unwind::Fp {
            let called = self.found_by == FoundBy::Probe || self.is_after_call(self.pc);
            return if called {
                PackedRule::from_bits(kind::CHAIN)
            } else {
                stop_rule(mapping_stop::NOT_CALLED)
            };
        }
        match mapping.kind {
            MappingKind::Table => self
                .image(mapping.image_at)
                .rule_at(mapping.bias.to_svma(address)),
            MappingKind::Pending => stop_rule(mapping_stop::PENDING),
            MappingKind::Anonymous => stop_rule(mapping_stop::ANONYMOUS),
            MappingKind::AnonymousLinked => stop_rule(mapping_stop::ANONYMOUS_LINKED),
            MappingKind::AnonymousMethods => stop_rule(mapping_stop::ANONYMOUS_METHODS),
            MappingKind::AnonymousStub => stop_rule(mapping_stop::ANONYMOUS_STUB),
            MappingKind::AnonymousPushed => stop_rule(mapping_stop::ANONYMOUS_PUSHED),
            MappingKind::NoTable => stop_rule(mapping_stop::NO_TABLE),
            MappingKind::NoCfi | MappingKind::Trampoline => PackedRule::GAP,
        }
    }

    /// Returns the rule for an address outside of all mappings, which is conclusive only while the list is up
    /// to date.
    fn without_mapping(&self) -> u32 {
        if self.tables.changing {
            mapping_stop::STALE
        } else {
            mapping_stop::NO_MAPPING
        }
    }

    fn push_frame(&mut self, rule: PackedRule) -> Step {
        if self.frames.len() >= MAX_DEPTH {
            return Err(End::DepthLimit);
        }
        let exact = self.pc_adjust == 0 || self.is_signal_frame(rule);
        self.frames.push(Frame {
            pc: self.pc,
            found_by: self.found_by,
            exact,
        });
        self.bases.push((self.sp, self.fp));
        Ok(())
    }

    /// Returns whether the frame is the kernel's signal trampoline, to which signal handlers return.
    fn is_signal_frame(&self, rule: PackedRule) -> bool {
        rule.kind() == kind::WIDE && self.image(0).word(rule.wide_index()) == Opcode::Signal as u32
    }

    fn apply_offset(&mut self, rule: PackedRule) -> Step {
        let base = if rule.kind() == kind::SP { self.sp } else { self.fp };
        let cfa = base.wrapping_add(8 * u64::from(rule.a()));
        let fp_slot = (rule.b() != 0).then(|| cfa.wrapping_sub(8 * u64::from(rule.b())));
        match rule.kind() {
            kind::SP => self.go_to_caller(cfa, cfa.wrapping_sub(8), fp_slot),
            _ => self.go_to_caller_by_fp(cfa, cfa.wrapping_sub(8), fp_slot),
        }
    }

    fn apply_plt(&mut self, rule: PackedRule) -> Step {
        let pushed = self.pc.get() & 15 >= u64::from(rule.a());
        let cfa = self.sp.wrapping_add(8 + 8 * u64::from(pushed));
        self.go_to_caller(cfa, cfa.wrapping_sub(8), None)
    }

    fn apply_drap(&mut self, rule: PackedRule) -> Step {
        let cfa = self.read_slot(add_signed(self.fp, 8 * rule.signed_a()))?;
        let cfa = Avma::new(cfa);
        let fp_slot = add_signed(self.fp, 8 * rule.signed_b());
        self.go_to_caller_by_fp(cfa, cfa.wrapping_sub(8), Some(fp_slot))
    }

    fn apply_stop(&mut self, rule: PackedRule) -> Step {
        match rule.a() {
            stop::END if self.may_lack_callers => Err(End::CallersUncertain),
            stop::END => Err(End::Complete),
            stop::GAP => {
                if rule.b() != FRAMED {
                    self.judge_frame_pointer();
                }
                self.apply_fp(End::NoCfi)
            }
            known @ (mapping_stop::ANONYMOUS
            | mapping_stop::ANONYMOUS_LINKED
            | mapping_stop::ANONYMOUS_METHODS
            | mapping_stop::ANONYMOUS_PUSHED
            | mapping_stop::ANONYMOUS_STUB) => self.apply_generated(known),
            mapping_stop::PENDING => Err(End::TableNotLoaded),
            mapping_stop::NO_TABLE => Err(End::NoTable),
            _ => Err(End::UnsupportedRule),
        }
    }

    /// Goes to the caller by the frame pointer, or ends with `implausible` if its value cannot be a frame
    /// pointer.
    fn apply_fp(&mut self, implausible: End) -> Step {
        let fp = self.fp;
        if fp < self.sp || !fp.get().is_multiple_of(8) || fp.offset_from(self.sp) > MAX_FP_DISTANCE {
            return Err(implausible);
        }
        let caller_fp = self.read_slot(fp).map_err(|_| implausible)?;
        let ra = self.read_slot(fp.wrapping_add(8)).map_err(|_| implausible)?;
        let ra = Avma::new(self.tables.architecture.strip(ra));
        if self.tables.unwind == Unwind::Dwarf {
            match self.judge_return_address(ra) {
                Returns::OnTrial if implausible == End::AnonymousCode => self.begin_trial(),
                Returns::OnTrial | Returns::No => return Err(implausible),
                Returns::Yes => {}
            }
        }
        self.sp = fp.wrapping_add(16);
        self.fp = Avma::new(caller_fp);
        self.pc = ra;
        self.pc_adjust = 1;
        self.found_by = self.found_by_fp();
        self.may_lack_callers |= self.is_doubtful;
        self.is_doubtful = false;
        self.switches_left = 0;
        self.lr = None;
        Ok(())
    }
}

/// Returns the end for stops that push no frame, as `pc` is not known to be on the stack.
fn end_without_frame(rule: PackedRule) -> Option<End> {
    if rule.kind() != kind::STOP {
        return None;
    }
    match rule.a() {
        mapping_stop::NO_MAPPING => Some(End::NoMapping),
        mapping_stop::TRAMPOLINE => Some(End::UretprobeTrampoline),
        mapping_stop::NOT_CALLED => Some(End::FpChainEnd),
        mapping_stop::STALE => Some(End::TableNotLoaded),
        _ => None,
    }
}

fn stop_rule(operand: u32) -> PackedRule {
    PackedRule::from_bits(kind::STOP | operand << crate::packed::KIND_BITS)
}

fn add_signed(address: Avma, offset: i32) -> Avma {
    address.wrapping_add(i64::from(offset).cast_unsigned())
}
