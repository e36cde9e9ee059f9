//! Selection of processes by container: by the ids that runtimes put into names of cgroups, and by names that
//! they keep on disk. No daemon is asked.
//!
//! Supports the names of Docker, of podman and CRI-O, of nerdctl, and of Kubernetes' log files. A user's own
//! files (rootless podman) name only containers in that user's slice, so that no user can give a name to
//! another user's container.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::cgroup::{self, Cgroups};
use crate::foreign::{LastLink, open_in_root};

/// Digits of a container's id.
const ID: usize = 64;
/// Digits of an id in messages, as runtimes show it.
const SHORT: usize = 12;
/// Maximum bytes of a file that names containers; Docker's have some 10 KiB, podman's some 2 KiB for each
/// container.
const MAX_FILE: u64 = 16 << 20;
/// Maximum number of entries of a directory that are looked at.
const MAX_ENTRIES: usize = 1 << 14;

/// Maximum number of daemons of nerdctl that are looked at, and of namespaces of each.
const MAX_NERDCTL: usize = 64;

/// A container whose processes run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Container {
    pub(super) id: String,
    /// User in whose slice it runs, if in any.
    pub(super) slice: Option<u32>,
}

/// Containers that the process is in: several if one is inside another.
pub(super) fn containers_of(cgroups: &Cgroups) -> Vec<Container> {
    let mut found = Vec::new();
    for path in cgroups.paths() {
        let mut slice = None;
        for component in cgroup::components(path) {
            slice = slice.or_else(|| user_of_slice(component));
            let id = id_of(component).map(str::to_owned);
            found.extend(id.map(|id| Container { id, slice }));
        }
    }
    found
}

fn user_of_slice(component: &str) -> Option<u32> {
    component
        .strip_prefix("user-")?
        .strip_suffix(".slice")?
        .parse()
        .ok()
}

/// Id in the name of a cgroup: `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope`,
/// `crio-ID.scope`, or `ID` alone (below `docker`, or a pod), or `pod….slice:cri-containerd:ID`. The monitors
/// of podman and CRI-O (`…-conmon-ID`) are not in the container.
fn id_of(component: &str) -> Option<&str> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let (runtime, id) = match name.rfind(['-', ':']) {
        Some(at) => (&name[..at], &name[at + 1..]),
        None => ("", name),
    };
    (id.len() == ID && is_hex(id) && !runtime.ends_with("conmon")).then_some(id)
}

/// True for lowercase hexadecimal digits only.
fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A container's name on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) id: String,
    /// The name in full, for messages.
    pub(super) name: String,
    /// The names by which it can be selected.
    aliases: Vec<String>,
    /// Owner of the file, if it is in a user's home.
    owner: Option<u32>,
}

impl Named {
    fn new(id: &str, name: &str, owner: Option<u32>) -> Option<Self> {
        let id = Some(id).filter(|id| id.len() == ID && is_hex(id))?.to_owned();
        // As kubelet names them: k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT.
        let parts: Vec<_> = name.split('_').collect();
        if let ["k8s", container, pod, namespace, _, ..] = parts[..] {
            return Some(Self {
                owner,
                ..Self::of_pod(id, namespace, pod, container)
            });
        }
        let aliases = vec![name.to_owned()];
        (!name.is_empty()).then(|| Self {
            id,
            name: name.to_owned(),
            aliases,
            owner,
        })
    }

    fn of_pod(id: String, namespace: &str, pod: &str, container: &str) -> Self {
        let name = format!("{namespace}/{pod}/{container}");
        let mut aliases = vec![name.clone(), format!("{pod}/{container}"), container.to_owned()];
        // The pod's name does not select the container that only keeps the pod's namespaces.
        if container != "POD" {
            aliases.extend([format!("{namespace}/{pod}"), pod.to_owned()]);
        }
        Self {
            id,
            name,
            aliases,
            owner: None,
        }
    }

    /// True if it names this container.
    fn is_of(&self, container: &Container) -> bool {
        self.id == container.id && (self.owner.is_none() || self.owner == container.slice)
    }
}

/// A name or id that several running containers have.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{text}` matches several containers: give the full name or ID of one: {}", .which.join(", "))]
pub struct Ambiguous {
    text: String,
    which: Vec<String>,
}

/// Finds the running container with this id, or else with this name, or else with an id that starts with the
/// text.
pub(super) fn choose(
    text: &str,
    running: &BTreeSet<Container>,
    names: &[Named],
) -> Result<BTreeSet<Container>, Ambiguous> {
    let of_id = |is_meant: &dyn Fn(&str) -> bool| -> BTreeSet<Container> {
        running
            .iter()
            .filter(|container| is_meant(&container.id))
            .cloned()
            .collect()
    };
    let exact = of_id(&|id| id == text);
    if !exact.is_empty() {
        return Ok(exact);
    }
    let named = |container: &Container| {
        let mut names = names.iter().filter(|named| named.is_of(container));
        names.any(|named| named.aliases.iter().any(|alias| alias == text))
    };
    let by_name: BTreeSet<_> = running
        .iter()
        .filter(|container| named(container))
        .cloned()
        .collect();
    let chosen = match by_name.is_empty() {
        true if is_hex(text) => of_id(&|id| id.starts_with(text)),
        _ => by_name,
    };
    let ids: BTreeSet<_> = chosen.iter().map(|container| container.id.as_str()).collect();
    if ids.len() < 2 {
        return Ok(chosen);
    }
    let which = ids.iter().map(|id| {
        let name = names
            .iter()
            .find(|named| chosen.iter().any(|one| one.id == **id && named.is_of(one)));
        let name = name.map_or(String::new(), |named| format!(" ({})", named.name));
        format!("{}{name}", short(id))
    });
    Err(Ambiguous {
        text: text.to_owned(),
        which: which.collect(),
    })
}

/// First digits of an id, as runtimes show it.
pub(super) fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

/// Names that can be suggested, of the containers that run.
pub(super) fn known<'a>(
    running: &'a BTreeSet<Container>,
    names: &'a [Named],
) -> impl Iterator<Item = &'a str> {
    let is_running = |named: &&Named| running.iter().any(|container| named.is_of(container));
    names.iter().filter(is_running).map(|named| named.name.as_str())
}

/// A user's home directory, whose files name that user's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) path: PathBuf,
    pub(super) user: u32,
}

/// Reads the names of all containers below a root directory. Files that cannot be read, or have another form,
/// are left out.
pub(super) fn read_names(root: &Path, home: Option<&Home>) -> Vec<Named> {
    let mut names = Vec::new();
    for id in entries(root, "var/lib/docker/containers") {
        let file = read(root, &format!("var/lib/docker/containers/{id}/config.v2.json"));
        let parsed = file.and_then(|text| serde_json::from_slice::<OfDocker>(&text).ok());
        names.extend(
            parsed.and_then(|of| Named::new(&id, of.name.strip_prefix('/').unwrap_or(&of.name), None)),
        );
    }
    for log in entries(root, "var/log/containers") {
        names.extend(of_log(&log));
    }
    read_storage(root, "var/lib/containers/storage", None, &mut names);
    read_nerdctl(root, "var/lib/nerdctl", None, &mut names);
    let inside = home.and_then(|home| Some((home.path.strip_prefix("/").ok()?.to_str()?, home.user)));
    if let Some((path, user)) = inside {
        let kept = format!("{path}/.local/share");
        read_storage(
            root,
            &format!("{kept}/containers/storage"),
            Some(user),
            &mut names,
        );
        read_nerdctl(root, &format!("{kept}/nerdctl"), Some(user), &mut names);
    }
    names
}

/// Reads the names that nerdctl gives to containers of containerd. For each daemon and namespace, there is a
/// file for each name, with the id in it.
fn read_nerdctl(root: &Path, directory: &str, owner: Option<u32>, names: &mut Vec<Named>) {
    for daemon in entries(root, directory).into_iter().take(MAX_NERDCTL) {
        let namespaces = format!("{directory}/{daemon}/names");
        for namespace in entries(root, &namespaces).into_iter().take(MAX_NERDCTL) {
            for name in entries(root, &format!("{namespaces}/{namespace}")) {
                let id = read(root, &format!("{namespaces}/{namespace}/{name}"));
                let id = id.and_then(|id| String::from_utf8(id).ok());
                names.extend(id.and_then(|id| Named::new(id.trim_end(), &name, owner)));
            }
        }
    }
}

/// Reads the names of containers/storage, which podman and CRI-O use, for each of its drivers.
fn read_storage(root: &Path, directory: &str, owner: Option<u32>, names: &mut Vec<Named>) {
    for driver in ["overlay", "vfs", "btrfs", "zfs"] {
        let file = read(root, &format!("{directory}/{driver}-containers/containers.json"));
        let parsed = file.and_then(|text| serde_json::from_slice::<Vec<OfStorage>>(&text).ok());
        for of in parsed.into_iter().flatten() {
            let all = of.names.iter().flatten();
            names.extend(all.filter_map(|name| Named::new(&of.id, name, owner)));
        }
    }
}

#[derive(Deserialize)]
struct OfDocker {
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Deserialize)]
struct OfStorage {
    id: String,
    names: Option<Vec<String>>,
}

/// Parses the name of a log file of Kubernetes: `POD_NAMESPACE_CONTAINER-ID.log`.
fn of_log(file: &str) -> Option<Named> {
    let (names, id) = file.strip_suffix(".log")?.rsplit_once('-')?;
    let parts: Vec<_> = names.split('_').collect();
    let &[pod, namespace, container] = &parts[..] else {
        return None;
    };
    let is_id = id.len() == ID && is_hex(id);
    is_id.then(|| Named::of_pod(id.to_owned(), namespace, pod, container))
}

/// Names in a directory.
fn entries(root: &Path, directory: &str) -> Vec<String> {
    let found = fs::read_dir(root.join(directory)).into_iter().flatten();
    let found = found.flatten().take(MAX_ENTRIES);
    found
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Reads an untrusted file.
fn read(root: &Path, path: &str) -> Option<Vec<u8>> {
    let opened = open_in_root(root, Path::new(path), LastLink::Refuse, MAX_FILE).ok()?;
    let mut text = Vec::new();
    opened.file.take(MAX_FILE).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
