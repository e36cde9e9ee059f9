//! Selection of processes by their control groups (cgroups(7)), as `/proc/PID/cgroup` names them.
//!
//! Pure. Paths are those that memleak's own cgroup namespace shows, for all processes alike.

use std::path::{Component, Path};

/// Suffixes of systemd's units that have a cgroup (systemd.unit(5)).
const KINDS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// Maximum number of hierarchies: controllers are fewer.
const MAX_HIERARCHIES: usize = 64;

/// The cgroups of one process: one for each hierarchy of version 1, and one of version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cgroups(Vec<(String, String)>);

impl Cgroups {
    /// Parses `/proc/PID/cgroup`; lines of another form are left out.
    pub(super) fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let lines = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            path.starts_with('/')
                .then(|| (controllers.to_owned(), path.to_owned()))
        });
        Self(lines.take(MAX_HIERARCHIES).collect())
    }

    /// Paths, each once.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let is_first = |at: usize| self.0.iter().take(at).all(|(_, path)| *path != self.0[at].1);
        (0..self.0.len())
            .filter(move |&at| is_first(at))
            .map(|at| self.0[at].1.as_str())
    }

    /// Path in the hierarchy that has the memory controller, of version 2 (`is_unified`) or 1.
    pub(super) fn of_memory(&self, is_unified: bool) -> Option<&str> {
        let has_memory = |controllers: &str| match is_unified {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|name| name == "memory"),
        };
        let found = self.0.iter().find(|(controllers, _)| has_memory(controllers));
        found.map(|(_, path)| path.as_str())
    }

    /// Names of the cgroups on all paths, from the root on.
    pub(super) fn components(&self) -> impl Iterator<Item = &str> {
        self.paths().flat_map(components)
    }
}

pub(super) fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !component.is_empty())
}

/// A unit of systemd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitQuery(String);

impl UnitQuery {
    /// Unit of this name, a service if it has no suffix; `None` if it cannot be a name.
    pub fn new(name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('/') {
            return None;
        }
        let has_kind = KINDS.iter().any(|kind| name.ends_with(kind));
        Some(Self(format!("{name}{}", if has_kind { "" } else { ".service" })))
    }

    /// The name with its suffix.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if a cgroup is the unit's, or that of an instance of a template (`getty@.service`).
    pub(super) fn is_named(&self, cgroup: &str) -> bool {
        // systemd escapes names that could be the kernel's by one underscore (`cg_escape`).
        let cgroup = cgroup.strip_prefix('_').unwrap_or(cgroup);
        let template = self.0.split_once("@.");
        cgroup == self.0
            || template.is_some_and(|(name, kind)| {
                let instance = cgroup.strip_prefix(name).and_then(|rest| rest.strip_prefix('@'));
                instance.is_some_and(|rest| rest.strip_suffix(kind).is_some_and(|rest| rest.ends_with('.')))
            })
    }

    /// Path of the unit's cgroup, if the process is in it or below.
    pub(super) fn find<'a>(&self, cgroups: &'a Cgroups) -> Option<&'a str> {
        cgroups
            .paths()
            .find(|path| components(path).any(|component| self.is_named(component)))
    }
}

/// True if a cgroup has the name of a unit.
pub(super) fn is_unit(cgroup: &str) -> bool {
    KINDS.iter().any(|kind| cgroup.ends_with(kind))
}

/// Hierarchies that a path refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    All,
    /// The one of version 2.
    Unified,
    /// One of version 1: the options of its mount, which name its controllers.
    Options(Vec<String>),
}

impl Scope {
    /// True if the hierarchy with these controllers is one of them.
    fn has(&self, controllers: &str) -> bool {
        match self {
            Self::All => true,
            Self::Unified => controllers.is_empty(),
            Self::Options(options) => {
                let is_mounted = |name| options.iter().any(|option| option == name);
                !controllers.is_empty() && controllers.split(',').all(is_mounted)
            }
        }
    }
}

/// A cgroup and all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subtree {
    scope: Scope,
    path: String,
}

impl Subtree {
    /// Cgroup at a path as given: in one hierarchy if the path is below its mount in `mountinfo`, in any
    /// hierarchy otherwise.
    pub(super) fn new(given: &str, mountinfo: &str) -> Self {
        let mounts = mountinfo.lines().filter_map(Mount::parse);
        let below = mounts.filter_map(|mount| Some((relative(given, mount.point)?, mount)));
        match below.max_by_key(|(_, mount)| mount.point.len()) {
            Some((rest, mount)) => Self {
                scope: mount.scope(),
                path: normal(&format!("{}/{rest}", mount.root)),
            },
            None => Self {
                scope: Scope::All,
                path: normal(relative(given, "/sys/fs/cgroup").unwrap_or(given)),
            },
        }
    }

    /// Path of the cgroup that the process is in, at or below this one.
    pub(super) fn find<'a>(&self, cgroups: &'a Cgroups) -> Option<&'a str> {
        let is_inside = |path: &str| self.path == "/" || relative(path, &self.path).is_some();
        let mut all = cgroups.0.iter();
        let found = all.find(|(controllers, path)| self.scope.has(controllers) && is_inside(path));
        found.map(|(_, path)| path.as_str())
    }
}

/// The rest of a path below another one; empty for the same.
pub(super) fn relative<'a>(path: &'a str, above: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(above)?;
    match rest.strip_prefix('/') {
        Some(rest) => Some(rest),
        None => rest.is_empty().then_some(rest),
    }
}

/// Normalizes a path: absolute, without empty parts and dots. A leading `..` stays: it leads out of the
/// cgroup namespace's root.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for component in Path::new(path).components() {
        let Some(part) = component.as_os_str().to_str() else {
            continue;
        };
        match component {
            Component::ParentDir if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            Component::ParentDir | Component::Normal(_) => parts.push(part),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    format!("/{}", parts.join("/"))
}

/// A mounted hierarchy, of proc_pid_mountinfo(5).
pub(super) struct Mount<'a> {
    pub(super) root: &'a str,
    pub(super) point: &'a str,
    pub(super) is_unified: bool,
    pub(super) options: &'a str,
}

impl<'a> Mount<'a> {
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut fields = file_system.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        matches!(kind, "cgroup" | "cgroup2").then_some(Self {
            root,
            point,
            is_unified: kind == "cgroup2",
            options,
        })
    }

    fn scope(&self) -> Scope {
        match self.is_unified {
            true => Scope::Unified,
            false => Scope::Options(self.options.split(',').map(str::to_owned).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &[u8] = b"9:name=systemd:/system.slice/nginx.service\n\
        4:memory:/pool/web\n2:cpu,cpuacct:/\n0::/system.slice/nginx.service/worker:1\nx\n5:pids:none\n";

    /// Lines of another form are left out, and paths may contain colons.
    #[test]
    fn cgroups() {
        let cgroups = Cgroups::parse(BOTH);
        let paths: Vec<_> = cgroups.paths().collect();
        let worker = "/system.slice/nginx.service/worker:1";
        assert_eq!(paths, ["/system.slice/nginx.service", "/pool/web", "/", worker]);
        assert_eq!(Cgroups::parse(b"0::/\xff\n").paths().count(), 1);
        assert_eq!(Cgroups::parse(b"").paths().count(), 0);
        let twice = Cgroups::parse(b"1:a:/x\n0::/x");
        assert_eq!(twice.paths().collect::<Vec<_>>(), ["/x"]);
    }

    /// A unit is a whole component of the path; a service needs no suffix, and a template has its instances.
    #[test]
    fn units() {
        let is_in = |unit: &str, path: &str| {
            let cgroups = Cgroups::parse(format!("0::{path}").as_bytes());
            UnitQuery::new(unit).expect("a name").find(&cgroups).is_some()
        };
        for (unit, path, expected) in [
            ("nginx.service", "/system.slice/nginx.service", true),
            ("nginx", "/system.slice/nginx.service", true),
            ("nginx", "/system.slice/nginx.service/child", true),
            (
                "app",
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app.service",
                true,
            ),
            ("system.slice", "/system.slice/nginx.service", true),
            (
                "session-3.scope",
                "/user.slice/user-0.slice/session-3.scope",
                true,
            ),
            ("nginx", "/system.slice/my-nginx.service", false),
            ("nginx", "/system.slice/nginx.service.d", false),
            ("nginx", "/system.slice/nginx", false),
            ("nginx", "/system.slice/nginx@a.service", false),
            (
                "worker@a",
                "/system.slice/system-worker.slice/worker@a.service",
                true,
            ),
            (
                "worker@",
                "/system.slice/system-worker.slice/worker@a.service",
                true,
            ),
            ("worker@.service", "/x/worker@b.c.service", true),
            ("worker@.service", "/x/worker@.service", true),
            ("worker@.service", "/x/worker@service", false),
            ("worker@.service", "/x/worker@a.scope", false),
            ("_x", "/__x.service", true),
            ("cgroup.x", "/_cgroup.x.service", true),
        ] {
            assert_eq!(is_in(unit, path), expected, "{unit} {path}");
        }
        for name in ["", "a/b", "/"] {
            assert_eq!(UnitQuery::new(name), None, "{name}");
        }
    }

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        42 31 0:39 /docker/a /inside rw - cgroup2 cgroup2 rw\nnonsense\n";

    /// A path below the mount of a hierarchy refers to that hierarchy only; another path, to all of them.
    #[test]
    fn subtrees() {
        let cgroups = Cgroups::parse(BOTH);
        let is_in = |path: &str| Subtree::new(path, MOUNTS).find(&cgroups).is_some();
        for path in [
            "/system.slice/nginx.service",
            "system.slice/nginx.service/",
            "system.slice",
            "/pool//web",
            "./pool/x/../web",
            "/sys/fs/cgroup/memory/pool",
            "/sys/fs/cgroup/memory/pool/web",
            "/sys/fs/cgroup/unified/system.slice/nginx.service/worker:1",
            "/sys/fs/cgroup/systemd/system.slice",
            "/sys/fs/cgroup/cpu,cpuacct",
            "/",
        ] {
            assert!(is_in(path), "{path}");
        }
        for path in [
            "/system.slice/nginx",
            "/pool/we",
            "/nginx.service",
            "/sys/fs/cgroup/memory/system.slice",
            "/sys/fs/cgroup/unified/pool",
            "/sys/fs/cgroup/systemd/pool",
            "/sys/fs/cgroup/system.slices",
            "/sys/fs/cgroup/unifie/pool",
            "/inside",
        ] {
            assert!(!is_in(path), "{path}");
        }
        // Without a mount to be seen, as in some containers.
        assert!(Subtree::new("/sys/fs/cgroup/pool", "").find(&cgroups).is_some());
        let container = Cgroups::parse(b"0::/docker/a/web");
        assert!(Subtree::new("/inside/web", MOUNTS).find(&container).is_some());
        let outside = Cgroups::parse(b"0::/../other");
        assert!(Subtree::new("/../other", MOUNTS).find(&outside).is_some());
    }
}
