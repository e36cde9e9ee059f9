//! The command line from outside: refusals, help, the manual, settings, and the terminal.

#[path = "../common/mod.rs"]
mod common;

mod command_line;
mod conventions;
mod deployment;
mod status_line;
mod surroundings;

const ROOT: common::program::Root = common::program::Root::Named;
