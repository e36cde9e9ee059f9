//! The image for containers is valid for independent readers of images, and holds the program alone;
//! manifests conform to Kubernetes' own schemas.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use memleak_test::program::{directory, end_if_only_compiled};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Directory where `tests/setup.sh` installs packages from PyPI.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/python");

fn output(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("PYTHONPATH", PACKAGES)
        .env("PACKAGE_COMPRESSION", "0");
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (tests/setup.sh test)"))
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Collects all files below a directory, with their modes.
fn files(root: &Path, at: &Path, found: &mut BTreeSet<(PathBuf, u32)>) {
    for entry in fs::read_dir(at).expect("a directory") {
        let path = entry.expect("readable").path();
        let mode = fs::metadata(&path)
            .expect("no dangling links")
            .permissions()
            .mode()
            & 0o7777;
        match path.is_dir() {
            true => files(root, &path, found),
            false => _ = found.insert((path.strip_prefix(root).expect("below").to_owned(), mode)),
        }
    }
}

/// The image of `make image`, here of the program that tests run: skopeo reads its platform, version and
/// entry point; umoci unpacks the program, its library and its licences, and nothing else; two images of one
/// archive are the same.
#[test]
fn image() {
    let place = directory("deployment-image");
    run("tests/package.sh", &[env!("CARGO_BIN_EXE_memleak"), text(&place)]);
    let name = format!("memleak-{VERSION}-x86_64-linux");
    let archive = place.join(format!("{name}.tar.xz"));
    let again = place.join("again");
    fs::create_dir_all(&again).expect("made");
    for made in [&place, &again] {
        run("tests/image.py", &[text(&archive), text(made)]);
    }
    let image = place.join(format!("{name}.oci.tar"));
    let other = again.join(format!("{name}.oci.tar"));
    assert!(
        fs::read(&image).expect("made") == fs::read(other).expect("made"),
        "not the same bytes"
    );

    let reference = format!("oci-archive:{}", text(&image));
    let inspected = run("skopeo", &["inspect", &reference]);
    let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
    assert_eq!(
        (&inspected["Architecture"], &inspected["Os"]),
        (&json!("amd64"), &json!("linux"))
    );
    assert_eq!(inspected["Layers"].as_array().expect("layers").len(), 1);
    assert_eq!(inspected["Labels"]["org.opencontainers.image.version"], VERSION);
    let config = run("skopeo", &["inspect", "--config", &reference]);
    let config: Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/memleak"]));

    let layout = place.join("layout");
    let bundle = place.join("bundle");
    _ = fs::remove_dir_all(&layout);
    _ = fs::remove_dir_all(&bundle);
    let copy = format!("oci:{}:{VERSION}", text(&layout));
    run(
        "skopeo",
        &["--insecure-policy", "copy", "--quiet", &reference, &copy],
    );
    let tagged = format!("{}:{VERSION}", text(&layout));
    run(
        "umoci",
        &["unpack", "--rootless", "--image", &tagged, text(&bundle)],
    );
    let root = bundle.join("rootfs");
    let mut found = BTreeSet::new();
    files(&root, &root, &mut found);
    let expected = [
        ("usr/bin/memleak", 0o755),
        ("usr/lib/memleak/libmemleak.so", 0o644),
        ("usr/share/doc/memleak/copyright", 0o644),
    ];
    assert_eq!(
        found,
        expected.map(|(path, mode)| (PathBuf::from(path), mode)).into()
    );
    run("tar", &["-C", text(&place), "-xf", text(&archive)]);
    for (from, to) in [
        ("bin/memleak", "usr/bin/memleak"),
        ("lib/memleak/libmemleak.so", "usr/lib/memleak/libmemleak.so"),
    ] {
        let (packed, unpacked) = (fs::read(place.join(&name).join(from)), fs::read(root.join(to)));
        assert!(packed.expect("packed") == unpacked.expect("unpacked"), "{to}");
    }
    assert_eq!(
        run(text(&root.join("usr/bin/memleak")), &["--version"]),
        format!("memleak {VERSION}\n")
    );
    let refused = output("tests/image.py", &[text(&image), text(&place)]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("make dist"));
}

/// The manifest of the DaemonSet is valid for an old and a new Kubernetes, and has no unknown fields; memleak
/// understands its arguments, and they are for this version.
#[test]
fn daemonset() {
    const FILE: &str = "deploy/daemonset.yaml";
    // Packages from PyPI are for this machine's Python alone.
    end_if_only_compiled();
    for version in ["1.30", "1.37"] {
        let checked = output(
            "/usr/bin/python3",
            &["-m", "kubernetes_validate", "--strict", "-k", version, FILE],
        );
        assert!(checked.status.success(), "{version}: {checked:?}");
    }
    let unknown = fs::read_to_string(FILE)
        .expect("it is there")
        .replace("hostPID:", "hostPid:");
    let wrong = directory("deployment-daemonset").join("wrong.yaml");
    fs::write(&wrong, unknown).expect("written");
    let refused = output(
        "/usr/bin/python3",
        &[
            "-m",
            "kubernetes_validate",
            "--strict",
            "-k",
            "1.37",
            text(&wrong),
        ],
    );
    assert!(!refused.status.success(), "the check sees mistakes: {refused:?}");
    let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let manifest = run("/usr/bin/python3", &["-c", script, FILE]);
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    let container = &manifest["spec"]["template"]["spec"]["containers"][0];
    let image = container["image"].as_str().expect("an image");
    assert!(image.ends_with(&format!("/memleak:{VERSION}")), "{image}");
    let arguments = container["args"].as_array().expect("arguments").iter();
    let arguments: Vec<&str> = arguments
        .map(|argument| argument.as_str().expect("text"))
        .collect();
    assert!(arguments.contains(&"--wait"));
    let at_once: Vec<&str> = arguments
        .into_iter()
        .filter(|argument| *argument != "--wait")
        .collect();
    let output = output(env!("CARGO_BIN_EXE_memleak"), &at_once);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("no process is in the container `default/shop`"),
        "{message}"
    );
}
