//! Control flow of single instructions, for each architecture, as precisely as following allocator functions
//! needs. Pure.

pub mod aarch64;

use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind, Register};
use unwind_tables::Architecture;
use unwind_tables::addr::Svma;

/// An instruction's addresses and control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub at: Svma,
    /// Address of the following instruction.
    pub next: Svma,
    pub flow: Flow,
}

/// Continuation of control after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// At the next instruction; also for a system call.
    Next,
    /// At this address or at the next instruction.
    Branch(Svma),
    /// At the target.
    Jump(Target),
    /// At the target, and then at the next instruction.
    Call(Target),
    /// In the caller.
    Return,
    /// Nowhere: it traps.
    Ends,
    /// Not known.
    Unknown,
    /// The bytes are not an instruction.
    Invalid,
}

/// Target of a jump or call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// An address in the same object.
    Code(Svma),
    /// The address stored in this slot of the object's memory.
    Slot(Svma),
    /// A computed address.
    Computed,
}

/// Decodes consecutive instructions of `code`, the first of which is at `start`.
pub fn instructions(
    architecture: Architecture,
    code: &[u8],
    start: Svma,
) -> Box<dyn Iterator<Item = Instruction> + '_> {
    match architecture {
        Architecture::X86_64 => Box::new(x86_64(code, start)),
        Architecture::Aarch64 => Box::new(aarch64::instructions(code, start)),
    }
}

fn x86_64(code: &[u8], start: Svma) -> impl Iterator<Item = Instruction> + '_ {
    let mut decoder = Decoder::with_ip(64, code, start.get(), DecoderOptions::NONE);
    std::iter::from_fn(move || {
        let instruction = decoder.can_decode().then(|| decoder.decode())?;
        Some(Instruction {
            at: Svma::new(instruction.ip()),
            next: Svma::new(instruction.next_ip()),
            flow: x86_64_flow(&instruction),
        })
    })
}

fn x86_64_flow(instruction: &iced_x86::Instruction) -> Flow {
    if instruction.is_invalid() {
        return Flow::Invalid;
    }
    let near = Svma::new(instruction.near_branch_target());
    match instruction.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::ConditionalBranch => Flow::Branch(near),
        FlowControl::UnconditionalBranch => Flow::Jump(Target::Code(near)),
        FlowControl::IndirectBranch => Flow::Jump(x86_64_target(instruction)),
        FlowControl::Return => Flow::Return,
        FlowControl::Call if instruction.is_call_near() => Flow::Call(Target::Code(near)),
        // A system call.
        FlowControl::Call => Flow::Next,
        FlowControl::IndirectCall => Flow::Call(x86_64_target(instruction)),
        FlowControl::Interrupt | FlowControl::Exception => Flow::Ends,
        FlowControl::XbeginXabortXend => Flow::Unknown,
    }
}

/// The slot of an indirect jump or call, such as `jmp *slot(%rip)`.
fn x86_64_target(instruction: &iced_x86::Instruction) -> Target {
    let through_memory = instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RIP
        && instruction.memory_index() == Register::None;
    if through_memory {
        Target::Slot(Svma::new(instruction.memory_displacement64()))
    } else {
        Target::Computed
    }
}
