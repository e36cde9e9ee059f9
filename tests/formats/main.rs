//! Output in its readers' hands: the page in a browser, and text in programs that were written for bcc's memleak.

#[path = "../common/mod.rs"]
mod common;

mod bcc;
mod html;

const ROOT: common::program::Root = common::program::Root::Any;
