//! Output as its readers have it: the page in a real browser, and text for what was written for bcc's memleak.

#[path = "../common/mod.rs"]
mod common;

mod bcc;
mod html;

const ROOT: common::program::Root = common::program::Root::Any;
