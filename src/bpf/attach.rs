//! Probes onto their sites. Frees are attached before allocations and detached after them, so that no block
//! is recorded whose free is not.

use std::path::{Path, PathBuf};

use libbpf_rs::{Link, ProgramMut, UprobeMultiOpts, UprobeOpts};
use thiserror::Error;
use unwind_tables::addr::FileOffset;

use super::load::AttachPath;
use super::skeleton::MemleakProgs;

/// Where a probe goes and what it means there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The file, as the kernel can open it.
    pub path: PathBuf,
    /// The instruction.
    pub offset: FileOffset,
    /// What the function's arguments mean: see `bpf/shared.h`.
    pub cookie: u64,
    /// Whether the function frees; otherwise it allocates or resizes.
    pub frees: bool,
    /// What to call it in messages.
    pub name: String,
}

/// A probe could not be attached.
#[derive(Debug, Error)]
#[error("cannot probe {names} in {path}: {source}")]
pub struct AttachError {
    /// The functions.
    pub names: String,
    /// The file.
    pub path: PathBuf,
    /// What the kernel says.
    pub source: libbpf_rs::Error,
}

/// Attached probes; dropping them detaches.
#[derive(Debug, Default)]
pub struct Attached {
    // Dropped in this order.
    allocations: Vec<Link>,
    frees: Vec<Link>,
}

impl Attached {
    /// Links held: one per object, or one per probe and direction.
    pub fn link_count(&self) -> usize {
        self.allocations.len() + self.frees.len()
    }
}

pub(super) fn attach(
    programs: &MemleakProgs<'_>,
    path: AttachPath,
    pid: i32,
    probes: &[Probe],
) -> Result<Attached, AttachError> {
    let (frees, allocations): (Vec<_>, Vec<_>) = probes.iter().partition(|probe| probe.frees);
    let mut attached = Attached::default();
    let each = |programs: &[(&ProgramMut<'_>, Moment)], probes: &[&Probe], links: &mut Vec<Link>| {
        by_file(probes).into_iter().try_for_each(|probes| {
            programs
                .iter()
                .try_for_each(|&(program, moment)| attach_file(program, path, moment, pid, &probes, links))
        })
    };
    let allocating: &[_] = match path {
        AttachPath::Session => &[(&programs.allocation_session, Moment::Both)],
        // The return first: a call that is seen to begin must be seen to end.
        AttachPath::Multi | AttachPath::Perf => &[
            (&programs.allocation_return, Moment::Return),
            (&programs.allocation_entry, Moment::Entry),
        ],
    };
    each(
        &[(&programs.free_entry, Moment::Entry)],
        &frees,
        &mut attached.frees,
    )?;
    each(allocating, &allocations, &mut attached.allocations)?;
    Ok(attached)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Entry,
    Return,
    Both,
}

fn by_file<'a>(probes: &[&'a Probe]) -> Vec<Vec<&'a Probe>> {
    let mut files: Vec<Vec<&Probe>> = Vec::new();
    for &probe in probes {
        match files.iter_mut().find(|file| file[0].path == probe.path) {
            Some(file) => file.push(probe),
            None => files.push(vec![probe]),
        }
    }
    files
}

/// Attaches `program` at all `probes`, which are in one file.
fn attach_file(
    program: &ProgramMut<'_>,
    path: AttachPath,
    moment: Moment,
    pid: i32,
    probes: &[&Probe],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    let Some(file) = probes.first().map(|probe| probe.path.as_path()) else {
        return Ok(());
    };
    if path != AttachPath::Perf {
        let link = attach_multi(program, moment, pid, file, probes);
        return keep(link, probes, file, links);
    }
    probes.iter().try_for_each(|probe| {
        let options = UprobeOpts {
            cookie: probe.cookie,
            retprobe: moment == Moment::Return,
            ..Default::default()
        };
        let link = program.attach_uprobe_with_opts(pid, file, position(probe), options);
        keep(link, &[probe], file, links)
    })
}

fn attach_multi(
    program: &ProgramMut<'_>,
    moment: Moment,
    pid: i32,
    file: &Path,
    probes: &[&Probe],
) -> Result<Link, libbpf_rs::Error> {
    let options = UprobeMultiOpts {
        offsets: probes.iter().map(|probe| position(probe)).collect(),
        cookies: probes.iter().map(|probe| probe.cookie).collect(),
        retprobe: moment == Moment::Return,
        session: moment == Moment::Both,
        ..Default::default()
    };
    program.attach_uprobe_multi_with_opts(pid, file, "", options)
}

fn position(probe: &Probe) -> usize {
    // File offsets fit: only 64-bit hosts are supported.
    usize::try_from(probe.offset.get()).unwrap_or(usize::MAX)
}

fn keep(
    link: Result<Link, libbpf_rs::Error>,
    probes: &[&Probe],
    file: &Path,
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    let names = || {
        probes
            .iter()
            .map(|probe| format!("`{}`", probe.name))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let link = link.map_err(|source| AttachError {
        names: names(),
        path: file.to_owned(),
        source,
    })?;
    links.push(link);
    Ok(())
}
