//! The command line from outside: refusals, help, the manual, settings, and the terminal.

mod command_line;
mod conventions;
mod deployment;
mod status_line;
mod surroundings;
