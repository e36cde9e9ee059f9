//! What is different between reports: of two, what grew ([`difference`]), of many, how fast ([`trend`]).
//!
//! Pure: reports in, plain data out; a format is one file with one function. Where reports come from is `replay`'s
//! business.

pub mod difference;
mod difference_flame;
mod difference_json;
mod difference_text;
mod identity;
mod manner;
#[cfg(test)]
mod tests;
pub mod trend;
mod trend_json;
mod trend_text;

pub use difference::{Comparison, Difference, Held, Side, State};
pub use difference_flame::{render_folded as render_difference_folded, render_svg as render_difference_svg};
pub use difference_json::render as render_difference_json;
pub use difference_text::render as render_difference_text;
pub use identity::{Builds, Trace};
pub use trend::{Course, Trend};
pub use trend_json::render as render_trend_json;
pub use trend_text::render as render_trend_text;
