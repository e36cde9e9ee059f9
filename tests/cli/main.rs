//! The command line from outside: what is refused and how, help and manual, settings, and what a terminal shows.

#[path = "../common/mod.rs"]
mod common;

mod command_line;
mod conventions;
mod status_line;

const ROOT: common::program::Root = common::program::Root::Named;
