//! Each header of `bpf/` compiles by itself, for both machines: it includes what it needs.

use std::path::Path;
use std::process::Command;

/// Names of headers below `bpf/`.
fn headers() -> Vec<String> {
    let root = Path::new("bpf");
    let entries = |directory: &Path| std::fs::read_dir(directory).expect("readable").flatten();
    let folders = entries(root).filter(|entry| entry.path().is_dir());
    let inner = folders.flat_map(|folder| entries(&folder.path()));
    let paths = entries(root).chain(inner).map(|entry| entry.path());
    let headers = paths.filter(|path| path.extension().is_some_and(|ending| ending == "h"));
    let names = headers.map(|path| path.strip_prefix(root).expect("below it").display().to_string());
    names.collect()
}

#[test]
fn headers_include_what_they_need() {
    let headers = headers();
    assert!(headers.len() > 20, "the search finds the headers: {headers:?}");
    for header in headers {
        for machine in ["x86", "arm64"] {
            let output = Command::new("clang")
                .args(["-fsyntax-only", "-w", "-g", "-O2", "-mcpu=v3", "-target", "bpf"])
                .arg(format!("-D__TARGET_ARCH_{machine}"))
                .args(["-Ibpf", "-I", env!("BPF_HEADERS"), "-include", &header])
                .args(["-x", "c", "/dev/null"])
                .output()
                .expect("clang runs");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{header}, {machine}: {errors}");
        }
    }
}
