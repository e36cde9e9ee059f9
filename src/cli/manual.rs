//! Shell completions and manual pages, generated from the command line's own description.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::examples;
use super::help::{self, Page};

/// Arguments of `memleak completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// Arguments of `memleak man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write the pages of all commands into this directory, as memleak.8, memleak-report.8 and so on.
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
}

/// Manual section for administration commands.
const SECTION: &str = "8";

/// Writes the completions of a shell.
pub fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    let mut command = visible(&super::command(Page::Manual));
    clap_complete::generate(args.shell, &mut command, "memleak", &mut script);
    out.write_all(&script)
}

/// Removes hidden flags, which completion scripts would offer.
fn visible(command: &Command) -> Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    Command::new(command.get_name().to_owned())
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(shown.cloned())
        .subcommands(command.get_subcommands().map(visible))
}

/// Writes memleak's manual page, or those of all commands into a directory.
pub fn man(args: &ManArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut root = super::command(Page::Manual).disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.output_dir else {
        return Ok(page(&root, out)?);
    };
    fs::create_dir_all(directory).with_context(|| cannot_write(directory))?;
    for command in root.get_subcommands().chain([&root]) {
        let name = command.get_display_name().unwrap_or("memleak");
        let path = directory.join(format!("{name}.{SECTION}"));
        let mut text = Vec::new();
        page(command, &mut text)?;
        fs::write(&path, text).with_context(|| cannot_write(&path))?;
    }
    Ok(())
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

fn page(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let is_root = command.get_name() == "memleak";
    let man = Man::new(command.clone()).section(SECTION);
    let name = command.get_display_name().unwrap_or("memleak");
    let version = env!("CARGO_PKG_VERSION");
    // No date: the version identifies the page.
    writeln!(
        out,
        ".TH {name} {SECTION} \"\" \"memleak {version}\" \"System Administration\""
    )?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if is_root {
        man.render_subcommands_section(out)?;
    }
    let mut rest = Roff::new();
    if is_root {
        for (heading, entries) in examples::SECTIONS {
            rest.control("SH", [heading.to_uppercase().as_str()]);
            entries
                .iter()
                .filter(|(word, _)| help::is_built(word))
                .for_each(|(word, meaning)| entry(&mut rest, word, meaning));
        }
    }
    rest.control("SH", ["EXAMPLES"]);
    let own = examples::of(command.get_name()).iter();
    let all = own.chain(examples::of_memleak().filter(|_| is_root));
    all.for_each(|(line, meaning)| entry(&mut rest, line, meaning));
    rest.to_writer(out)
}

fn entry(page: &mut Roff, word: &str, meaning: &str) {
    page.control("TP", []);
    page.text([bold(word)]);
    page.text([roman(meaning)]);
}
