//! Compile-time equality of what C and Rust say about the same thing.
//!
//! The C side is `bpf/shared.h` and `bpf/rules.h`, seen through the types that the build generates from the
//! object's type information; the Rust side is the `unwind-tables` crate. A difference fails the build.

use unwind_tables::image::{self, header};
use unwind_tables::mapping::{self, MappingKind, Trust};
use unwind_tables::packed::{self, kind, stop, wide};
use unwind_tables::walk::{self, End, FoundBy};

use super::skeleton::types as c;

macro_rules! equal {
    ($($c_value:expr => $rust_value:expr),+ $(,)?) => {
        $(const _: () = assert!($c_value.0 as u64 == $rust_value as u64, stringify!($c_value));)+
    };
}

equal! {
    c::limits::MAX_FRAMES => walk::MAX_FRAMES,
    c::limits::MAX_FP_DISTANCE => walk::MAX_FP_DISTANCE,
    c::limits::ADDRESS_BITS => mapping::ADDRESS_BITS,
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
    c::end_cause::END_CAUSES => End::ALL.len(),
}

equal! {
    c::found_by::FOUND_BY_PROBE => FoundBy::Probe,
    c::found_by::FOUND_BY_CFI => FoundBy::Cfi,
    c::found_by::FOUND_BY_FP => FoundBy::Fp,
    c::mapping_kind::MAPPING_TABLE => MappingKind::Table,
    c::mapping_kind::MAPPING_PENDING => MappingKind::Pending,
    c::mapping_kind::MAPPING_NO_CFI => MappingKind::NoCfi,
    c::mapping_kind::MAPPING_ANONYMOUS => MappingKind::Anonymous,
    c::mapping_kind::MAPPING_TRAMPOLINE => MappingKind::Trampoline,
    c::mapping_trust::TRUST_SETTLED => Trust::Settled,
    c::mapping_trust::TRUST_CHECKED => Trust::Checked,
    c::mapping_trust::TRUST_UNCHANGED => Trust::Unchanged,
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
    c::image_shape::BLOCK_SHIFT => image::BLOCK_SHIFT,
    c::image_shape::RULE_NUMBER_ESCAPE => image::ESCAPE,
    c::image_shape::WIDE_WORDS => packed::WIDE_WORDS,
    c::image_shape::ROW_BITS => image::MAX_ROWS.trailing_zeros(),
}

equal! {
    c::rule_kind::RULE_SP => kind::SP,
    c::rule_kind::RULE_FP => kind::FP,
    c::rule_kind::RULE_PLT => kind::PLT,
    c::rule_kind::RULE_DRAP => kind::DRAP,
    c::rule_kind::RULE_WIDE => kind::WIDE,
    c::rule_kind::RULE_STOP => kind::STOP,
    c::rule_kind::RULE_CHAIN => kind::CHAIN,
    c::rule_shape::RULE_KIND_BITS => packed::KIND_BITS,
    c::rule_shape::RULE_A_BITS => packed::A_BITS,
    c::rule_shape::RULE_B_BITS => packed::B_BITS,
    c::stop_operand::STOP_END => stop::END,
    c::stop_operand::STOP_GAP => stop::GAP,
    c::stop_operand::STOP_UNSUPPORTED => stop::UNSUPPORTED,
}

equal! {
    c::wide_flag::WIDE_CFA_FROM_FP => wide::CFA_FROM_FP,
    c::wide_flag::WIDE_CFA_DEREF => wide::CFA_DEREF,
    c::wide_flag::WIDE_RA_AT_REGISTER => wide::RA_AT_REGISTER,
    c::wide_flag::WIDE_RA_FROM_FP => wide::RA_FROM_FP,
    c::wide_flag::WIDE_FP_SAVED => wide::FP_SAVED,
    c::wide_flag::WIDE_FP_AT_REGISTER => wide::FP_AT_REGISTER,
    c::wide_flag::WIDE_FP_FROM_FP => wide::FP_FROM_FP,
    c::wide_flag::WIDE_SIGNAL_FRAME => wide::SIGNAL_FRAME,
}
