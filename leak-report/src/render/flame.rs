//! Flame graphs: stacks from the root on, each with one number, a [`Quantity`](crate::model::Quantity); equal ones are one.
//!
//! The allocator function is no frame: what is allocated is its caller's own. So the tools that reckon a function's own
//! share name the one that holds memory, not `malloc`; and in the picture of a difference that one has the colour, which
//! only the innermost frame of a stack has.
//!
//! What is shown is what the text report shows, of all stacks: no young blocks, and nothing twice. Only JSON has all.

mod caption;
mod folded;
mod names;
mod svg;

pub use caption::Caption;
pub(super) use caption::{name, remarks};
pub use folded::Folded;
pub(super) use folded::render as render_folded;
pub(super) use names::{FlameFrame, Naming};
pub use svg::difference;
pub(super) use svg::render as render_svg;
