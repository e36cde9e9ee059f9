//! Claims about selections, over made-up trees of `/proc`.

use std::os::unix::fs::symlink;

use super::*;

/// A made-up `/proc`, and files of runtimes below the same root.
struct Made(tempfile::TempDir);

impl Made {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    /// Adds a process of user 1000.
    fn add(&self, pid: u32, comm: &str, exe: &str, cgroup: &str) {
        self.add_as(pid, (comm, exe), cgroup, ('S', 0));
    }

    fn add_as(&self, pid: u32, (comm, exe): (&str, &str), cgroup: &str, (state, flags): (char, u64)) {
        let stat = format!(
            "{pid} ({comm}) {state} 1 1 1 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 {pid}00 0 0 0 4096 0\n"
        );
        self.write(&format!("proc/{pid}/stat"), stat);
        self.write(
            &format!("proc/{pid}/status"),
            format!("Name:\t{comm}\nUid:\t1000\t0\t0\t0\n"),
        );
        self.write(
            &format!("proc/{pid}/cgroup"),
            format!("1:name=systemd:{cgroup}\n0::{cgroup}\n"),
        );
        self.write(&format!("proc/{pid}/cmdline"), format!("{exe}\0-x\0"));
        let link = self.0.path().join(format!("proc/{pid}/exe"));
        symlink(exe, link).expect("a link");
    }

    fn selection(&self, selectors: Selectors) -> Selection {
        let root = self.0.path().to_owned();
        let places = Places {
            proc: root.join("proc"),
            root,
            home: None,
            own: 99,
        };
        Selection::at(selectors, places).expect("the user exists")
    }

    fn pids(&self, selectors: Selectors) -> Result<Vec<u32>, String> {
        let found = self
            .selection(selectors)
            .scan()
            .map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|found| found.pid).collect())
    }
}

fn wanted(values: &[&str]) -> Selectors {
    let one = |value: &&str| match value.parse() {
        Ok(pid) => Wanted::Pid(pid),
        Err(_) => Wanted::Name(NameQuery::new(value).expect("not empty")),
    };
    Selectors {
        wanted: values.iter().map(one).collect(),
        ..Selectors::default()
    }
}

fn services() -> Made {
    let made = Made::new();
    let nginx = "/system.slice/nginx.service";
    made.add(10, "nginx", "/usr/sbin/nginx", nginx);
    made.add(11, "nginx", "/usr/sbin/nginx", nginx);
    made.add(20, "my-nginx", "/usr/bin/my-nginx", "/");
    made.add(
        30,
        "redis-server",
        "/usr/bin/redis-server",
        "/system.slice/redis.service",
    );
    made.add(40, "systemd-journal", "/lib/systemd/systemd-journald", "/");
    made.add(99, "nginx", "/usr/sbin/nginx", nginx);
    made.add_as(12, ("nginx", "/usr/sbin/nginx"), nginx, ('Z', 0));
    made.add_as(13, ("nginx", "/usr/sbin/nginx"), nginx, ('I', 0x20_0000));
    made.write("proc/15/stat", "garbage");
    made.write(
        "proc/self/mountinfo",
        "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    made
}

/// Processes are found by whole names and numbers, in any order; never memleak itself, kernel threads, and
/// those that have ended.
#[test]
fn names_and_numbers() {
    let made = services();
    for (values, expected) in [
        (&["nginx"][..], &[10, 11][..]),
        (&["redis-server", "nginx"], &[10, 11, 30]),
        (&["20", "nginx"], &[10, 11, 20]),
        (&["10", "nginx"], &[10, 11]),
        (&["systemd-journald"], &[40]),
        (&["/usr/sbin/nginx"], &[10, 11]),
    ] {
        assert_eq!(made.pids(wanted(values)), Ok(expected.to_vec()), "{values:?}");
    }
}

/// An error names what does not match, and suggests similar names; also if only one of several names has no
/// match.
#[test]
fn nothing_matches() {
    let made = services();
    for (selectors, expected) in [
        (
            wanted(&["redis-srver"]),
            "no process is named `redis-srver`: did you mean redis-server?; --wait waits until one starts",
        ),
        (
            wanted(&["redis", "nginx"]),
            "no process is named `redis`: did you mean redis-server?; --wait",
        ),
        (wanted(&["nothing"]), "no process is named `nothing`; --wait"),
        (
            Selectors {
                user: Some("1000".to_owned()),
                ..wanted(&["nginx", "77"])
            },
            "no process has pid 77 and is of user `1000`; `ps -e`",
        ),
        (
            Selectors {
                unit: UnitQuery::new("ngnix"),
                ..Selectors::default()
            },
            "is in the systemd unit `ngnix.service`: did you mean nginx.service?",
        ),
        (
            Selectors {
                cgroup: Some("redis".to_owned()),
                ..Selectors::default()
            },
            "is in the cgroup `redis`: did you mean /system.slice/redis.service?",
        ),
        (
            Selectors {
                user: Some("0".to_owned()),
                ..wanted(&["nginx"])
            },
            "no process is named `nginx` and is of user `0`; --wait",
        ),
    ] {
        let error = made.pids(selectors).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let unknown = Selection::new(Selectors {
        user: Some("no-such-user".to_owned()),
        ..Selectors::default()
    });
    assert!(matches!(unknown, Err(SelectError::NoSuchUser(_))));
}

/// A process must match everything that is given.
#[test]
fn selectors_together() {
    let made = services();
    let user = |id: &str| Some(id.to_owned());
    let by_user = |id: &str, values: &[&str]| {
        made.pids(Selectors {
            user: user(id),
            ..wanted(values)
        })
    };
    assert_eq!(by_user("1000", &["nginx"]), Ok(vec![10, 11]));
    assert_eq!(by_user("1000", &[]), Ok(vec![10, 11, 20, 30, 40]));
    let unit = || UnitQuery::new("nginx");
    let of_unit = |values: &[&str]| {
        made.pids(Selectors {
            unit: unit(),
            ..wanted(values)
        })
    };
    assert_eq!(of_unit(&[]), Ok(vec![10, 11]));
    assert_eq!(of_unit(&["11"]), Ok(vec![11]));
    let error = of_unit(&["11", "30"]).expect_err("another unit");
    assert!(
        error.contains("has pid 30 and is in the systemd unit `nginx.service`"),
        "{error}"
    );
    let cgroup = |path: &str| {
        made.pids(Selectors {
            cgroup: Some(path.to_owned()),
            ..Selectors::default()
        })
    };
    assert_eq!(cgroup("/sys/fs/cgroup/system.slice"), Ok(vec![10, 11, 30]));
    assert_eq!(cgroup("/system.slice/redis.service"), Ok(vec![30]));
}

/// A container is found by what its runtime has written, and an ambiguous id is refused.
#[test]
fn containers() {
    let made = services();
    let (a, b) = ("a".repeat(64), "ab".repeat(32));
    made.add(50, "web", "/web", &format!("/system.slice/docker-{a}.scope"));
    made.add(51, "web", "/web", &format!("/kubepods/burstable/pod1/{b}"));
    made.write(
        &format!("var/lib/docker/containers/{a}/config.v2.json"),
        r#"{"Name":"/front"}"#,
    );
    made.write(&format!("var/log/containers/shop-1_default_web-{b}.log"), "");
    let of = |text: &str| {
        made.pids(Selectors {
            container: Some(text.to_owned()),
            ..Selectors::default()
        })
    };
    assert_eq!(of("front"), Ok(vec![50]));
    assert_eq!(of("default/shop-1"), Ok(vec![51]));
    assert_eq!(of("aaa"), Ok(vec![50]));
    let error = of("a").expect_err("two");
    assert!(
        error.contains("aaaaaaaaaaaa (front), abababababab (default/shop-1/web)"),
        "{error}"
    );
    let error = of("fronts").expect_err("none");
    assert!(
        error.contains("no process is in the container `fronts`: did you mean front?"),
        "{error}"
    );
}

/// A look tells those that match from those that do not, a successor with the same pid included, and finding
/// none is no error.
#[test]
fn looks() {
    let made = services();
    let mut selection = made.selection(wanted(&["nginx"]));
    let mut look = || {
        let sight = selection.look().expect("processes can be read");
        let found: Vec<_> = sight
            .found
            .iter()
            .map(|found| (found.pid, found.start_time))
            .collect();
        (found, sight.others)
    };
    let (found, others) = look();
    assert_eq!(found, [(10, 1000), (11, 1100)]);
    assert!(others.iter().any(|&(pid, _)| pid == 30) && !others.contains(&(10, 1000)));
    made.add(14, "nginx", "/usr/sbin/nginx", "/");
    fs::remove_dir_all(made.0.path().join("proc/10")).expect("it ends");
    let (found, others) = look();
    assert_eq!(found, [(11, 1100), (14, 1400)]);
    assert!(!others.contains(&(10, 1000)));
    for pid in [11, 14] {
        let path = format!("proc/{pid}/stat");
        let stat = fs::read_to_string(made.0.path().join(&path)).expect("a file");
        made.write(
            &path,
            stat.replace(&format!(" {pid}00 "), " 2000 ")
                .replace("(nginx)", "(sh)"),
        );
        fs::remove_file(made.0.path().join(format!("proc/{pid}/exe"))).expect("a file");
    }
    let (found, others) = look();
    assert!(found.is_empty() && others.contains(&(14, 2000)) && !others.contains(&(14, 1400)));
    let mut none = made.selection(Selectors {
        container: Some("no-such".to_owned()),
        ..Selectors::default()
    });
    assert!(none.look().expect("no error").found.is_empty());
}

/// Hostile names neither match more than themselves nor hide a process; a list of cgroups has a limit.
#[test]
fn hostile_processes() {
    let made = services();
    made.add(60, "a) S 1 (nginx", "/tmp/x) Z", "/");
    made.add(61, "\u{1b}[31m", "/tmp/\n", "/system.slice/\u{1b}.service");
    made.add(62, "long", "/long", "/");
    made.write("proc/62/cgroup", "0::/x\n".repeat(1 << 20));
    made.write("proc/62/cmdline", vec![b'x'; 1 << 20]);
    assert_eq!(made.pids(wanted(&["nginx"])), Ok(vec![10, 11]));
    assert_eq!(made.pids(wanted(&["a) S 1 (nginx"])), Ok(vec![60]));
    let long = made.pids(Selectors {
        cgroup: Some("/x".to_owned()),
        ..Selectors::default()
    });
    assert_eq!(long, Ok(vec![62]));
    let began = Instant::now();
    assert!(
        made.pids(Selectors {
            unit: UnitQuery::new("x"),
            ..Selectors::default()
        })
        .is_err()
    );
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// One line lists processes of one name together.
#[test]
fn list() {
    let made = services();
    let mut selection = made.selection(Selectors {
        user: Some("1000".to_owned()),
        ..wanted(&["nginx", "30"])
    });
    let found = selection.scan().expect("three");
    let expected = "10,11 (nginx, by name, of user 1000); 30 (redis-server, by pid, of user 1000)";
    assert_eq!(Found::list(&found), expected);
}
