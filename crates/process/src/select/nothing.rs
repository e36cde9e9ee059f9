//! Explanation why no process matches, with similar names of what runs.

use std::collections::BTreeSet;

use thiserror::Error;

use super::cgroup::{components, is_unit};
use super::container::{self, Container, Named};
use super::{NameQuery, Seen, Selectors, UnitQuery, matches_name};

/// Minimum likeness of a name to be suggested (1: equal).
const LIKENESS: f64 = 0.6;
/// Maximum difference in likeness between the nearest name and others that are suggested, too.
const NEAR: f64 = 0.1;
/// Maximum number of names that are suggested.
const MAX_NEAR: usize = 3;

/// No process matches.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no process {what}{}; {remedy}", suggestion(.near))]
pub struct Nothing {
    /// Properties that no process has, in words.
    what: String,
    /// Similar names of running processes, units, cgroups or containers.
    near: Vec<String>,
    remedy: &'static str,
}

impl Nothing {
    /// Says that nothing matches, without a remedy.
    pub fn what(&self) -> String {
        format!("no process {} yet", self.what)
    }

    /// Replaces the remedy, for commands that cannot wait.
    pub fn without_wait(self) -> Self {
        Self { remedy: LIST, ..self }
    }
}

/// Remedy where waiting does not help, or is not possible.
const LIST: &str = "`ps -e` lists what runs here";

fn suggestion(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!(": did you mean {}?", near.join(" or ")),
    }
}

/// A failed search, with the processes and containers that it has seen.
pub(super) struct Search<'a> {
    pub(super) selectors: &'a Selectors,
    pub(super) seen: &'a [Seen],
    pub(super) names: &'a [Named],
    pub(super) running: &'a BTreeSet<Container>,
}

impl Search<'_> {
    /// Explains that nothing matches, or nothing has this name, or this number.
    pub(super) fn explain(&self, name: Option<&NameQuery>, pid: Option<u32>) -> Nothing {
        let Selectors {
            unit,
            cgroup,
            container,
            user,
            ..
        } = self.selectors;
        let what = [
            name.map(|name| format!("is named `{}`", name.as_str())),
            pid.filter(|_| name.is_none()).map(|pid| format!("has pid {pid}")),
            unit.as_ref()
                .map(|unit| format!("is in the systemd unit `{}`", unit.as_str())),
            cgroup.as_ref().map(|path| format!("is in the cgroup `{path}`")),
            container
                .as_ref()
                .map(|text| format!("is in the container `{text}`")),
            user.as_ref().map(|user| format!("is of user `{user}`")),
        ];
        let what: Vec<_> = what.into_iter().flatten().collect();
        Nothing {
            what: what.join(" and "),
            near: self.near(name),
            remedy: match pid.is_some() && name.is_none() {
                true => LIST,
                false => "--wait waits until one starts",
            },
        }
    }

    /// Finds similar names of what runs, for the first selector with names that no process matches.
    fn near(&self, name: Option<&NameQuery>) -> Vec<String> {
        let is_there = |name: &NameQuery| {
            let mut seen = self.seen.iter();
            seen.any(|(candidate, _)| matches_name(name, candidate).is_some())
        };
        if let Some(name) = name.filter(|name| !is_there(name)) {
            let names = self.seen.iter().flat_map(|(candidate, _)| {
                let exe = candidate.exe();
                let file = exe.as_ref().and_then(|exe| exe.file_name()?.to_str());
                [Some(candidate.stat.comm.clone()), file.map(str::to_owned)]
            });
            let name = name.as_str().rsplit('/').next().unwrap_or_default();
            return nearest(name, names.flatten(), |name| name);
        }
        let is_inside = |unit: &UnitQuery| self.seen.iter().any(|(_, cgroups)| unit.find(cgroups).is_some());
        if let Some(unit) = self.selectors.unit.as_ref().filter(|unit| !is_inside(unit)) {
            let cgroups = self.seen.iter().flat_map(|(_, cgroups)| cgroups.components());
            let units = cgroups.filter(|name| is_unit(name)).map(str::to_owned);
            return nearest(unit.as_str(), units, stem);
        }
        if let Some(path) = &self.selectors.cgroup {
            let given = path.trim_end_matches('/');
            let last = components(path).last().unwrap_or_default();
            let paths = self.seen.iter().flat_map(|(_, cgroups)| cgroups.paths());
            let is_like = |path: &&str| {
                components(path)
                    .last()
                    .is_some_and(|name| likeness(last, name) >= LIKENESS)
            };
            let paths = paths.filter(|path| !given.ends_with(path)).filter(is_like);
            let paths: BTreeSet<_> = paths.map(str::to_owned).collect();
            return paths.into_iter().take(MAX_NEAR).collect();
        }
        let container = self.selectors.container.as_deref();
        let names = container::known(self.running, self.names).map(str::to_owned);
        container.map_or_else(Vec::new, |text| nearest(text, names, |name| name))
    }
}

/// A unit's name without its kind (`.service`), which every unit has.
fn stem(unit: &str) -> &str {
    unit.rsplit_once('.').map_or(unit, |(stem, _)| stem)
}

/// Finds the names most similar to `name`, by the `part` of each that tells them apart.
fn nearest(name: &str, names: impl Iterator<Item = String>, part: fn(&str) -> &str) -> Vec<String> {
    let names: BTreeSet<String> = names.filter(|other| other != name).collect();
    let mut like: Vec<_> = names
        .into_iter()
        .map(|other| (likeness(part(name), part(&other)), other))
        .collect();
    like.retain(|(likeness, _)| *likeness >= LIKENESS);
    like.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let best = like.first().map_or(0.0, |(likeness, _)| *likeness);
    like.retain(|(likeness, _)| best - likeness <= NEAR);
    like.into_iter().map(|(_, name)| name).take(MAX_NEAR).collect()
}

/// Likeness of two names. A name within the other counts as [`LIKENESS`] at least, from three bytes on.
fn likeness(name: &str, other: &str) -> f64 {
    let (a, b) = (name.to_lowercase(), other.to_lowercase());
    let is_part = a.len().min(b.len()) >= 3 && (a.contains(&b) || b.contains(&a));
    let likeness = strsim::normalized_damerau_levenshtein(&a, &b);
    if is_part { likeness.max(LIKENESS) } else { likeness }
}
