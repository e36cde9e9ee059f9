//! Compile-time checks that C and Rust constants are equal.
//!
//! The C side is `bpf/shared.h` and `bpf/walk/rules.h`, through the types that the build generates from the
//! object's type information; the Rust side is the `unwind-tables` crate. A difference fails the build.

use unwind_tables::image::{self, header};
use unwind_tables::mapping::{self, MappingKind, Trust};
use unwind_tables::packed::{self, kind, stop};
use unwind_tables::program::{self, Opcode};
use unwind_tables::saves::{self, long};
use unwind_tables::walk::{self, End, FoundBy};

use super::skeleton::types as c;
use crate::allocator::Catalog;
use leak_report::model::leak::kernel_frames::KernelAllocator;

macro_rules! equal {
    ($($c_value:expr => $rust_value:expr),+ $(,)?) => {
        $(const _: () = assert!($c_value.0 as u64 == $rust_value as u64, stringify!($c_value));)+
    };
}

const _: () = assert!(Catalog::CAPACITY == c::limits::MAX_FUNCTIONS.0 as usize);

equal! {
    c::limits::MAX_DEPTH => walk::MAX_DEPTH,
    c::limits::MAX_FRAMES => walk::MAX_FRAMES,
    c::limits::INNERMOST_FRAMES => walk::INNERMOST_FRAMES,
    c::limits::OUTERMOST_FRAMES => walk::OUTERMOST_FRAMES,
    c::limits::MAX_FP_DISTANCE => walk::MAX_FP_DISTANCE,
    c::limits::MAX_FRAME_SLOTS => walk::MAX_FRAME_SLOTS,
    c::limits::JUMPS_LOOKED_FOR => walk::JUMPS_LOOKED_FOR,
    c::limits::RETURN_LOOKED_FOR => walk::RETURN_LOOKED_FOR,
    c::limits::MAX_STACK_SWITCHES => walk::MAX_STACK_SWITCHES,
    c::limits::MAX_LOOKS => walk::MAX_LOOKS,
    c::machine::ADDRESS_BITS => mapping::ADDRESS_BITS,
    c::limits::MAPPING_CHECKS => mapping::CHECKS,
}

equal! {
    c::end_cause::END_COMPLETE => End::Complete,
    c::end_cause::END_NO_MAPPING => End::NoMapping,
    c::end_cause::END_ANONYMOUS_CODE => End::AnonymousCode,
    c::end_cause::END_NO_CFI => End::NoCfi,
    c::end_cause::END_UNSUPPORTED_RULE => End::UnsupportedRule,
    c::end_cause::END_READ_FAULT => End::ReadFault,
    c::end_cause::END_NO_PROGRESS => End::NoProgress,
    c::end_cause::END_DEPTH_LIMIT => End::DepthLimit,
    c::end_cause::END_TABLE_NOT_LOADED => End::TableNotLoaded,
    c::end_cause::END_URETPROBE_TRAMPOLINE => End::UretprobeTrampoline,
    c::end_cause::END_FP_CHAIN_END => End::FpChainEnd,
    c::end_cause::END_SCRATCH_BUSY => End::ScratchBusy,
    c::end_cause::END_STACK_TABLE_FULL => End::StackTableFull,
    c::end_cause::END_KERNEL_UNWINDER => End::KernelUnwinder,
    c::end_cause::END_LOOK_LIMIT => End::LookLimit,
    c::end_cause::END_BEYOND_COPY => End::BeyondCopy,
    c::end_cause::END_NO_TABLE => End::NoTable,
    c::end_cause::END_CALLERS_UNCERTAIN => End::CallersUncertain,
    c::end_cause::END_CAUSES => End::ALL.len(),
}

equal! {
    c::found_by::FOUND_BY_PROBE => FoundBy::Probe,
    c::found_by::FOUND_BY_CFI => FoundBy::Cfi,
    c::found_by::FOUND_BY_FP => FoundBy::Fp,
    c::found_by::FOUND_BY_KERNEL => FoundBy::Kernel,
    c::found_by::FOUND_BY_FP_GENERATED => FoundBy::FpGenerated,
    c::found_by::FOUND_BY_FP_UNCERTAIN => FoundBy::FpUncertain,
    c::found_by::FOUND_BY_PYTHON => FoundBy::Python,
    c::mapping_kind::MAPPING_TABLE => MappingKind::Table,
    c::mapping_kind::MAPPING_PENDING => MappingKind::Pending,
    c::mapping_kind::MAPPING_NO_CFI => MappingKind::NoCfi,
    c::mapping_kind::MAPPING_ANONYMOUS => MappingKind::Anonymous,
    c::mapping_kind::MAPPING_TRAMPOLINE => MappingKind::Trampoline,
    c::mapping_kind::MAPPING_ANONYMOUS_LINKED => MappingKind::AnonymousLinked,
    c::mapping_kind::MAPPING_ANONYMOUS_METHODS => MappingKind::AnonymousMethods,
    c::mapping_kind::MAPPING_ANONYMOUS_STUB => MappingKind::AnonymousStub,
    c::mapping_kind::MAPPING_ANONYMOUS_PUSHED => MappingKind::AnonymousPushed,
    c::mapping_kind::MAPPING_NO_TABLE => MappingKind::NoTable,
    c::mapping_trust::TRUST_SETTLED => Trust::Settled,
    c::mapping_trust::TRUST_CHECKED => Trust::Checked,
    c::mapping_trust::TRUST_UNCHANGED => Trust::Unchanged,
    c::mapping_trust::TRUST_CHECKED_UNCHANGED => Trust::CheckedUnchanged,
}

equal! {
    c::kernel_allocator::KERNEL_KMALLOC => KernelAllocator::Kmalloc,
    c::kernel_allocator::KERNEL_CACHE => KernelAllocator::Cache,
    c::kernel_allocator::KERNEL_PAGES => KernelAllocator::Pages,
    c::kernel_allocator::KERNEL_PERCPU => KernelAllocator::Percpu,
}

equal! {
    c::image_header::IMAGE_FIRST_BLOCK => header::FIRST_BLOCK,
    c::image_header::IMAGE_BLOCK_COUNT => header::BLOCK_COUNT,
    c::image_header::IMAGE_INDEX_AT => header::INDEX_AT,
    c::image_header::IMAGE_ROWS_AT => header::ROWS_AT,
    c::image_header::IMAGE_RULES_AT => header::RULES_AT,
    c::image_header::IMAGE_ESCAPES_AT => header::ESCAPES_AT,
    c::image_header::IMAGE_ESCAPE_COUNT => header::ESCAPE_COUNT,
    c::image_header::IMAGE_WIDE_AT => header::WIDE_AT,
    c::image_header::IMAGE_SAVES_AT => header::SAVES_AT,
    c::image_shape::BLOCK_SHIFT => image::BLOCK_SHIFT,
    c::image_shape::RULE_NUMBER_ESCAPE => image::ESCAPE,
    c::image_shape::ROW_BITS => image::MAX_ROWS.trailing_zeros(),
}

equal! {
    c::rule_kind::RULE_SP => kind::SP,
    c::rule_kind::RULE_FP => kind::FP,
    c::rule_kind::RULE_PLT => kind::PLT,
    c::rule_kind::RULE_LONE => kind::LONE,
    c::rule_kind::RULE_DRAP => kind::DRAP,
    c::rule_kind::RULE_WIDE => kind::WIDE,
    c::rule_kind::RULE_STOP => kind::STOP,
    c::rule_kind::RULE_CHAIN => kind::CHAIN,
    c::rule_shape::RULE_KIND_BITS => packed::KIND_BITS,
    c::rule_shape::RULE_A_BITS => packed::A_BITS,
    c::rule_shape::RULE_B_BITS => packed::B_BITS,
    c::rule_shape::RECORD_SIGNED => packed::aarch64::SIGNED,
    c::stop_operand::STOP_END => stop::END,
    c::stop_operand::STOP_GAP => stop::GAP,
    c::rule_shape::GAP_FRAMED => packed::FRAMED,
    c::stop_operand::STOP_UNSUPPORTED => stop::UNSUPPORTED,
}

equal! {
    c::opcode::OP_END => Opcode::End,
    c::opcode::OP_SIGNAL => Opcode::Signal,
    c::opcode::OP_REGISTER => Opcode::Register,
    c::opcode::OP_CFA => Opcode::Cfa,
    c::opcode::OP_CONSTANT => Opcode::Constant,
    c::opcode::OP_HIGH => Opcode::High,
    c::opcode::OP_DEREF => Opcode::Deref,
    c::opcode::OP_ADD => Opcode::Add,
    c::opcode::OP_PICK => Opcode::Pick,
    c::opcode::OP_DROP => Opcode::Drop,
    c::opcode::OP_SWAP => Opcode::Swap,
    c::opcode::OP_ROTATE => Opcode::Rotate,
    c::opcode::OP_ABSOLUTE => Opcode::Absolute,
    c::opcode::OP_NEGATE => Opcode::Negate,
    c::opcode::OP_NOT => Opcode::Not,
    c::opcode::OP_AND => Opcode::And,
    c::opcode::OP_OR => Opcode::Or,
    c::opcode::OP_XOR => Opcode::Xor,
    c::opcode::OP_PLUS => Opcode::Plus,
    c::opcode::OP_MINUS => Opcode::Minus,
    c::opcode::OP_MULTIPLY => Opcode::Multiply,
    c::opcode::OP_SHIFT_LEFT => Opcode::ShiftLeft,
    c::opcode::OP_SHIFT_RIGHT => Opcode::ShiftRight,
    c::opcode::OP_SHIFT_ARITHMETIC => Opcode::ShiftArithmetic,
    c::opcode::OP_EQUAL => Opcode::Equal,
    c::opcode::OP_NOT_EQUAL => Opcode::NotEqual,
    c::opcode::OP_LESS => Opcode::Less,
    c::opcode::OP_LESS_EQUAL => Opcode::LessEqual,
    c::opcode::OP_GREATER => Opcode::Greater,
    c::opcode::OP_GREATER_EQUAL => Opcode::GreaterEqual,
    c::opcode::OP_SET_CFA => Opcode::SetCfa,
    c::opcode::OP_SET_RA => Opcode::SetRa,
    c::opcode::OP_SET_FP => Opcode::SetFp,
    c::opcode::OP_SET_SP => Opcode::SetSp,
    c::opcode::OP_SET_LR => Opcode::SetLr,
    c::program_shape::OP_WORDS => program::OP_WORDS,
    c::program_shape::MAX_OPS => program::MAX_OPS,
    c::program_shape::MAX_OPERANDS => program::MAX_OPERANDS,
}

equal! {
    c::register_number::REGISTER_RBX => saves::PRESERVED[0],
    c::register_number::REGISTER_R12 => saves::PRESERVED[1],
    c::register_number::REGISTER_FP => program::FP,
    c::register_number::REGISTER_SP => program::SP,
    c::register_number::REGISTER_LR => program::LR,
    c::register_number::REGISTERS => program::REGISTERS,
    c::register_number::REGISTER_PC => program::PC,
    c::saved_kind::SAVED_SAME => long::SAME,
    c::saved_kind::SAVED_UNKNOWN => long::UNKNOWN,
    c::saved_kind::SAVED_AT_CFA => long::AT_CFA,
    c::saved_kind::SAVED_AT_SP => long::AT_SP,
    c::saved_kind::SAVED_AT_FP => long::AT_FP,
    c::saves_shape::SAVED_KIND_BITS => long::KIND_BITS,
    c::saves_shape::SAVES_FIELD_BITS => saves::FIELD_BITS,
    c::saves_shape::SAVES_FIELD_UNKNOWN => saves::FIELD_UNKNOWN,
}
