//! Differences between reports: growth between two ([`difference`]), rate of growth over many ([`trend`]).
//!
//! Pure: reports in, plain data out; each format is one file with one function. Reading reports is the task
//! of `replay`.

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

pub use difference::{Comparison, Difference, Side, SiteAmounts, State};
pub use difference_flame::{render_folded as render_difference_folded, render_svg as render_difference_svg};
pub use difference_json::render as render_difference_json;
pub use difference_text::render as render_difference_text;
pub use identity::{Builds, Trace};
pub use trend::{Course, Trend};
pub use trend_json::render as render_trend_json;
pub use trend_text::render as render_trend_text;
