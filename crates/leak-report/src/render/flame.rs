//! Flame graphs: call stacks from the root on, each with one number, a [`Quantity`](crate::model::Quantity);
//! equal stacks are merged.
//!
//! The allocator function is not a frame: its allocations count as its caller's own. So tools that compute a
//! function's own share name the function with outstanding memory, not `malloc`; and in a differential flame
//! graph, where only the innermost frame of a stack is coloured, that function has the colour.
//!
//! The graphs show what the text report shows, for all stacks: no young blocks, and no block twice. Only JSON
//! has everything.

mod caption;
mod folded;
mod names;
mod svg;

pub use caption::Caption;
pub(super) use caption::{name, remarks};
pub use folded::Folded;
pub(super) use folded::render as render_folded;
pub(super) use names::{FlameFrame, Naming, left_out_marker};
pub use svg::difference;
pub(super) use svg::render as render_svg;
