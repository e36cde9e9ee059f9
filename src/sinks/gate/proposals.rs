//! Proposes suppressions for sites that count, one rule per site, to be reviewed.
//!
//! A rule names one function and should suppress as few other sites as possible: it is the function of the
//! site that occurs in the fewest of all stacks, freed or not; among equals, the innermost. Functions in
//! every stack (`main`, the module of a program without symbols) are not proposed: they would suppress
//! everything.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::site::Site;
use super::words::described;
use leak_report::model::Report;
use leak_report::model::owner::is_plumbing;
use leak_report::model::site_name::{SiteNames, plain, without_start};
use leak_report::model::{Amount, FrameRef};
use leak_report::render::{counted, printable, size};

/// A proposed rule, with what it would suppress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    /// `None` if every pattern would suppress everything.
    pattern: Option<String>,
    /// Description of the site, or of one of several.
    site: String,
    outstanding: Amount,
}

/// Proposes a rule for each of `sites` with its amount; sites with the same rule are merged. Most bytes
/// first.
pub(super) fn propose<'a>(
    report: &Report,
    sites: impl Iterator<Item = (&'a Site<'a>, Amount)>,
    names: &SiteNames,
) -> Vec<Proposal> {
    let mut stacks_with: HashMap<String, usize> = HashMap::new();
    for stack in report.stacks() {
        let patterns: HashSet<_> = stack.frames().filter_map(pattern).collect();
        for pattern in patterns {
            *stacks_with.entry(pattern).or_default() += 1;
        }
    }
    let all = report.stacks.len();
    let stacks_with = |pattern: &String| stacks_with.get(pattern).copied().unwrap_or(all);
    let mut proposals: HashMap<Option<String>, Proposal> = HashMap::new();
    for (site, outstanding) in sites.filter(|(_, outstanding)| outstanding.blocks > 0) {
        let patterns = without_start(site.stack).filter_map(pattern);
        let rarest = patterns.min_by_key(&stacks_with);
        let pattern = rarest.filter(|pattern| all == 1 || stacks_with(pattern) < all);
        let proposal = proposals.entry(pattern.clone()).or_insert_with(|| Proposal {
            pattern,
            site: described(names, &site.key, report.names),
            outstanding: Amount::default(),
        });
        proposal.outstanding = proposal.outstanding + outstanding;
    }
    let mut proposals: Vec<_> = proposals.into_values().collect();
    let order = |proposal: &Proposal| (Reverse(proposal.outstanding.bytes), proposal.pattern.clone());
    proposals.sort_by_cached_key(order);
    proposals
}

/// A pattern for a frame; `None` if only its address is known, or all its functions are plumbing
/// ([`is_plumbing`]).
fn pattern(frame: FrameRef<'_>) -> Option<String> {
    let inlined = frame.inlined().filter_map(|inlined| inlined.symbol);
    let own = frame.function();
    if frame.is_python() && own.is_some_and(|name| name.starts_with('<')) {
        // `<module>` is in every file.
        return Some(anchored(frame.file()?, true));
    }
    let mut raw = inlined.chain(own).filter(|name| !is_plumbing(name));
    if let Some(name) = raw.next() {
        let plain = plain(name);
        return Some(anchored(&plain, plain == name));
    }
    let module = frame.module().filter(|_| own.is_none())?;
    Some(anchored(module.path(), true))
}

/// A pattern for exactly `name`, or for names that begin with it.
fn anchored(name: &str, is_whole: bool) -> String {
    let end = if is_whole { "$" } else { "" };
    // `$` and control characters would have another meaning or end the line.
    let text = name.replace(|character: char| character == '$' || character.is_control(), "*");
    format!("^{text}{end}")
}

/// Beginning of a file of proposals.
pub(super) const MAGIC: &str = "# Proposed by memleak";

/// Writes the proposals as a suppression file.
pub(super) fn write(proposals: &[Proposal], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{MAGIC} --write-suppressions, one rule per site; keep the ones you want.\n\
         # For --suppressions, and for LeakSanitizer (LSAN_OPTIONS=suppressions=FILE)."
    )?;
    for Proposal {
        pattern,
        site,
        outstanding,
    } in proposals
    {
        let (bytes, blocks) = (size(outstanding.bytes), counted(outstanding.blocks, "block"));
        writeln!(out, "\n# {bytes} in {blocks}: {}", printable(site))?;
        match pattern {
            Some(pattern) => writeln!(out, "leak:{pattern}")?,
            None => writeln!(
                out,
                "# Every rule for it would suppress everything; a baseline can accept it."
            )?,
        }
    }
    Ok(())
}
