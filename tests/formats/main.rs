//! Output in its readers' hands: the page in a browser, text in programs that were written for bcc's memleak, and JSON before a
//! validator.

#[path = "../common/mod.rs"]
mod common;

mod bcc;
mod html;
mod json_schema;

const ROOT: common::program::Root = common::program::Root::Any;
