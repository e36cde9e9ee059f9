//! Claims about containers, over made-up trees and hostile files.

use std::fs::File;
use std::os::unix::fs::symlink;

use super::*;

fn id(digit: char) -> String {
    digit.to_string().repeat(ID)
}

fn running(containers: &[(&str, Option<u32>)]) -> BTreeSet<Container> {
    let one = |(id, slice): &(&str, Option<u32>)| Container {
        id: (*id).to_owned(),
        slice: *slice,
    };
    containers.iter().map(one).collect()
}

/// Ids are found wherever runtimes put them, and nothing else is one.
#[test]
fn ids_in_cgroups() {
    let a = id('a');
    for path in [
        format!("/docker/{a}"),
        format!("/system.slice/docker-{a}.scope"),
        format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{a}.scope"),
        format!("/kubepods/burstable/pod12-34/{a}"),
        format!("/machine.slice/libpod-{a}.scope/container"),
        format!("/libpod_parent/libpod-{a}"),
        format!("/kubepods.slice/crio-{a}.scope"),
        format!("/system.slice/x-pod1.slice:cri-containerd:{a}"),
    ] {
        let found = containers_of(&Cgroups::parse(format!("0::{path}").as_bytes()));
        assert_eq!(
            found,
            [Container {
                id: a.clone(),
                slice: None
            }],
            "{path}"
        );
    }
    for path in [
        format!("/machine.slice/libpod-conmon-{a}.scope"),
        format!("/crio-conmon-{a}.scope"),
        format!("/docker/{}", &a[1..]),
        format!("/docker/{a}a"),
        format!("/docker/{}", a.to_uppercase()),
        format!("/docker/{}é", &a[2..]),
        "/docker/-".to_owned(),
    ] {
        let found = containers_of(&Cgroups::parse(format!("0::{path}").as_bytes()));
        assert_eq!(found, [], "{path}");
    }
    let b = id('b');
    let rootless =
        format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{a}.scope/docker/{b}");
    let found = containers_of(&Cgroups::parse(rootless.as_bytes()));
    let slice = Some(1000);
    assert_eq!(found, [Container { id: a, slice }, Container { id: b, slice }]);
}

/// An id may be abbreviated as long as only one running container matches; a name precedes an abbreviated id.
#[test]
fn choices() {
    let (a, b) = (id('a'), format!("{}{}", "a".repeat(20), "b".repeat(44)));
    let runs = running(&[(&a, None), (&b, None)]);
    let names = [
        Named::new(&b, "web", None),
        Named::new(&a, "aaaab", None),
        Named::new(&id('c'), "web", None),
    ];
    let names: Vec<_> = names.into_iter().flatten().collect();
    let chosen = |text: &str| {
        let chosen = choose(text, &runs, &names)?;
        Ok::<Vec<_>, Ambiguous>(chosen.into_iter().map(|one| one.id).collect())
    };
    assert_eq!(chosen(&a), Ok(vec![a.clone()]));
    assert_eq!(chosen(&b[..21]), Ok(vec![b.clone()]));
    // A container that has ended has this name, too.
    assert_eq!(chosen("web"), Ok(vec![b.clone()]));
    assert_eq!(chosen("aaaab"), Ok(vec![a.clone()]));
    for text in ["we", "webs", "WEB", "", "d", &id('c')] {
        assert_eq!(chosen(text), Ok(Vec::new()), "{text}");
    }
    let error = chosen("aaaaaaaaaaaa").expect_err("two").to_string();
    for part in [
        "`aaaaaaaaaaaa` matches several",
        "aaaaaaaaaaaa (aaaab)",
        "aaaaaaaaaaaa (web)",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

/// A user's own files name containers in that user's slice, and no other.
#[test]
fn names_of_users() {
    let a = id('a');
    let names: Vec<_> = Named::new(&a, "db", Some(1000)).into_iter().collect();
    for (slice, expected) in [(Some(1000), 1), (Some(1001), 0), (None, 0)] {
        let chosen = choose("db", &running(&[(&a, slice)]), &names).expect("one at most");
        assert_eq!(chosen.len(), expected, "{slice:?}");
    }
}

/// Pods, and their containers, have the names that Kubernetes gives them.
#[test]
fn pods() {
    let (a, b) = (id('a'), id('b'));
    let log = |container: &str, id: &str| of_log(&format!("web-7_shop_{container}-{id}.log")).expect("a log");
    let names = [log("app-server", &a), log("sidecar", &b)];
    let runs = running(&[(&a, None), (&b, None)]);
    for text in ["app-server", "web-7/app-server", "shop/web-7/app-server"] {
        let chosen = choose(text, &runs, &names).expect("one");
        assert_eq!(chosen, running(&[(&a, None)]), "{text}");
    }
    let error = choose("web-7", &runs, &names).expect_err("two").to_string();
    assert!(
        error.contains("(shop/web-7/app-server)") && error.contains("(shop/web-7/sidecar)"),
        "{error}"
    );
    let only = running(&[(&b, None)]);
    assert_eq!(choose("shop/web-7", &only, &names), Ok(only));
    let of_kubelet = Named::new(&a, "k8s_app_web-7_shop_0123_0", None).expect("named");
    assert_eq!(of_kubelet.name, "shop/web-7/app");
    let sandbox = Named::new(&a, "k8s_POD_web-7_shop_0123_0", None).expect("named");
    assert!(!sandbox.aliases.contains(&"web-7".to_owned()));
    for file in [
        "",
        ".log",
        "a_b_c.log",
        "a_b_c-12.log",
        "a_b-c.log",
        "-.log",
        "a_b_c_d-é.log",
    ] {
        assert_eq!(of_log(file), None, "{file}");
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    fs::write(path, text).expect("a file");
}

/// Names come from each runtime's files; garbage, links, pipes and huge files name nothing and harm nothing.
#[test]
fn names_on_disk() {
    let made = tempfile::tempdir().expect("a directory");
    let root = made.path();
    let docker = |digit: char| format!("var/lib/docker/containers/{}/config.v2.json", id(digit));
    write(
        root,
        &docker('a'),
        r#"{"ID":"x","Name":"/web","Config":{"Name":7}}"#,
    );
    let bombs = [
        "[".repeat(1 << 20),
        r#"{"Name":7}"#.to_owned(),
        String::new(),
        "\0\u{ff}".to_owned(),
    ];
    for (digit, text) in ['b', 'c', 'd', 'e'].into_iter().zip(&bombs) {
        write(root, &docker(digit), text);
    }
    write(root, &docker('f'), "");
    File::options()
        .write(true)
        .open(root.join(docker('f')))
        .and_then(|file| file.set_len(1 << 40))
        .expect("a hole");
    write(
        root,
        "var/lib/docker/containers/not-an-id/config.v2.json",
        r#"{"Name":"/nobody"}"#,
    );
    write(root, "secret", r#"{"Name":"/secret"}"#);
    write(root, &format!("var/lib/docker/containers/{}/x", id('1')), "");
    symlink("/secret", root.join(docker('1'))).expect("a link");
    write(root, &format!("var/lib/docker/containers/{}/x", id('2')), "");
    nix::unistd::mkfifo(&root.join(docker('2')), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let storage = format!(
        r#"[{{"id":"{}","names":["db","db2"],"layer":"x"}},{{"id":"{}"}},{{"id":"zz","names":["bad"]}}]"#,
        id('3'),
        id('4')
    );
    write(
        root,
        "var/lib/containers/storage/overlay-containers/containers.json",
        &storage,
    );
    let own = format!(r#"[{{"id":"{}","names":["mine"]}}]"#, id('5'));
    write(
        root,
        "home/u/.local/share/containers/storage/vfs-containers/containers.json",
        &own,
    );
    write(root, &format!("var/log/containers/p_n_c-{}.log", id('6')), "");
    let nerdctl = "nerdctl/1935db59/names/default";
    write(root, &format!("var/lib/{nerdctl}/shop"), &id('7'));
    write(root, &format!("var/lib/{nerdctl}/garbage"), "\u{ff}");
    write(
        root,
        &format!("home/u/.local/share/{nerdctl}/rootless"),
        &format!("{}\n", id('8')),
    );
    let home = Home {
        path: "/home/u".into(),
        user: 1000,
    };
    let mut found: Vec<_> = read_names(root, Some(&home))
        .into_iter()
        .map(|named| (named.name, named.owner))
        .collect();
    found.sort();
    let named = |name: &str| (name.to_owned(), None);
    let expected = [
        named("db"),
        named("db2"),
        ("mine".to_owned(), Some(1000)),
        named("n/p/c"),
        ("rootless".to_owned(), Some(1000)),
        named("shop"),
        named("web"),
    ];
    assert_eq!(found, expected);
    assert_eq!(read_names(root, None).len(), 5);
    assert!(read_names(&root.join("none"), None).is_empty());
}
