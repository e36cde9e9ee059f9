//! Conventions of command line tools: completions, manual pages, colours, settings, and an end when the
//! reader is gone.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::command_line::{check_refused, memleak};
use memleak_test::memleak::tracing;
use memleak_test::program::{PATIENCE, Program, compile, directory, require_root};

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command.env_remove("COLUMNS").env_remove("NO_COLOR");
    command
}

/// Completes words as bash does; the last one is being typed.
fn completed(script: &Path, words: &[&str]) -> Vec<String> {
    let ask = r#"
        script=$1; shift
        source "$script"
        words=($(complete -p memleak)); for at in "${!words[@]}"; do
            [ "${words[at]}" = -F ] && function=${words[at+1]}
        done
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        "$function" memleak "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["--norc", "-c", ask, "bash"])
        .arg(script)
        .args(words)
        .output()
        .expect("bash");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().map(str::to_owned).collect()
}

/// bash completes flags, their values and subcommands, and does not offer what is hidden.
#[test]
fn completions() {
    let script = directory("conventions-completions").join("memleak.bash");
    fs::write(&script, memleak(&["completions", "bash"]).stdout).expect("our own directory");
    for (words, expected) in [
        (
            &["memleak", "--fo"][..],
            &["--format", "--follow-fork", "--force"][..],
        ),
        (&["memleak", "--format", "s"], &["summary", "svg", "speedscope"]),
        (&["memleak", "re"], &["report"]),
        (&["memleak", "--walk"], &[]),
        (&["memleak", "diff", "--me"], &["--measure"]),
        (&["memleak", "report", "--color", "a"], &["auto", "always"]),
    ] {
        let (mut found, mut expected) = (completed(&script, words), expected.to_vec());
        found.sort();
        expected.sort_unstable();
        assert_eq!(found, expected, "{words:?}");
    }
    for (shell, part) in [
        ("zsh", "#compdef memleak"),
        ("fish", "complete -c memleak"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = memleak(&["completions", shell]);
        let text = String::from_utf8_lossy(&script.stdout);
        assert!(script.status.success() && text.contains(part), "{shell}: {text}");
    }
    check_refused(&memleak(&["completions", "csh"]), &["csh", "bash", "zsh"]);
}

/// There is a page for memleak and for each subcommand, and both readers of pages understand them.
#[test]
fn manual() {
    let directory = directory("conventions-manual");
    let path = directory.to_str().expect("UTF-8");
    let output = memleak(&["man", "--output-dir", path]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let mut pages: Vec<_> = fs::read_dir(&directory)
        .expect("our own directory")
        .map(|entry| entry.expect("readable").path())
        .collect();
    pages.sort();
    assert!(pages.len() >= 8, "{pages:?}");
    for page in &pages {
        for (tool, arguments) in [
            ("man", &["--warnings", "-E", "UTF-8", "-l"][..]),
            ("mandoc", &["-T", "lint", "-W", "error"]),
        ] {
            let read = Command::new(tool).args(arguments).arg(page).output();
            let read = read.unwrap_or_else(|error| panic!("{tool}: {error} (apt-get install man-db mandoc)"));
            assert!(
                read.status.success() && read.stderr.is_empty(),
                "{tool}: {read:?}"
            );
        }
    }
    let page = String::from_utf8_lossy(&memleak(&["man"]).stdout).into_owned();
    assert_eq!(
        page,
        fs::read_to_string(directory.join("memleak.8")).expect("written")
    );
    for part in [
        ".TH memleak 8",
        "SH \"EXIT STATUS\"",
        "SH FILES",
        "table\\-memory",
        "MEMLEAK_FORMAT",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    check_refused(
        &memleak(&["man", "--output-dir", "/proc/nowhere"]),
        &["/proc/nowhere", "cannot write"],
    );
}

/// A reader that closes the pipe is no error: of help, of a table, of completions.
#[test]
fn closed_pipe_is_no_error() {
    for arguments in [
        &["--help"][..],
        &["completions", "bash"],
        &["man"],
        &["table", "/usr/lib/x86_64-linux-gnu/libc.so.6"],
        &["doctor"],
        &["--ebpf"],
    ] {
        let mut child = command()
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memleak was built");
        drop(child.stdout.take());
        let mut errors = String::new();
        let mut stderr = child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut errors).expect("text");
        let status = child.wait().expect("a child of ours");
        assert!(
            status.success() && errors.is_empty(),
            "{arguments:?}: {status} {errors}"
        );
    }
}

/// A trace whose reader is gone ends long before its next report, and succeeds.
#[test]
fn trace_ends_with_its_reader_as_root() {
    let directory = directory("conventions-closed-pipe");
    let program = Program::start(&compile(&directory, "amounts/plain.c", &["-O2"]), &[]);
    program.expect("ready");
    let (mut child, _messages) = tracing(&["-p", &program.pid().to_string(), "86400"]);
    drop(child.stdout.take());
    let began = Instant::now();
    let status = child.wait().expect("a child of ours");
    assert!(status.success(), "{status}");
    assert!(began.elapsed() < *PATIENCE / 5);
}

/// Text has colours on request and where the environment wants them, but not in a pipe, nor in formats for
/// programs.
#[test]
fn colours() {
    let painted = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output = command()
            .args(arguments)
            .envs(environment.iter().copied())
            .output()
            .expect("memleak was built");
        [output.stdout, output.stderr].concat().contains(&0x1b)
    };
    let force = [("CLICOLOR_FORCE", "1")];
    let both = [("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")];
    for (arguments, environment, expected) in [
        (&["doctor"][..], &force[..], true),
        (&["doctor", "--format", "json", "--color", "always"], &[], false),
        (&["--help"], &[], false),
        (&["--help"], &force, true),
        (&["--help"], &both, false),
        (&["--help"], &[("MEMLEAK_COLOR", "always")], true),
        (&["--help", "--color", "always"], &both, true),
        (&["--help", "--color=never"], &force, false),
        (&["--nonsense"], &[], false),
        (&["--nonsense", "--color", "always"], &[], true),
        (&["report", "/nowhere"], &force, true),
        (&["report", "/nowhere", "--color", "never"], &force, false),
    ] {
        let found = painted(arguments, environment);
        assert_eq!(found, expected, "{arguments:?} {environment:?}");
    }
}

/// Files and variables are read from the right places, in their order; each mistake is one line with its
/// place; under sudo, the settings of the user who called it are not trusted.
#[test]
fn settings_as_root() {
    require_root();
    // User 1 must be able to reach the file.
    let home = tempfile::tempdir().expect("a directory");
    let readable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path(), readable).expect("our own directory");
    let file = home.path().join("memleak/config.toml");
    fs::create_dir(home.path().join("memleak")).expect("our own directory");
    let report = |environment: &[(&str, &str)], arguments: &[&str]| {
        command()
            .args(["report", "/nowhere", "--all"])
            .args(arguments)
            .env("XDG_CONFIG_HOME", home.path())
            .env_remove("SUDO_UID")
            .envs(environment.iter().copied())
            .output()
            .expect("memleak was built")
    };
    // `--all` with SVG is refused before the recording is opened: this shows whether settings chose SVG.
    let is_svg = |environment: &[_], arguments: &[_]| {
        let errors = report(environment, arguments).stderr;
        String::from_utf8_lossy(&errors).contains("one report")
    };
    let write = |text: &str, mode| {
        fs::write(&file, text).expect("our own directory");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("our own file");
    };
    assert!(!is_svg(&[], &[]));
    write("[report]\nformat = 'svg'\n", 0o644);
    assert!(is_svg(&[], &[]));
    assert!(!is_svg(&[], &["--no-config"]) && !is_svg(&[("MEMLEAK_NO_CONFIG", "1")], &[]));
    assert!(!is_svg(&[], &["--format", "text"]));
    assert!(!is_svg(&[("MEMLEAK_REPORT_FORMAT", "text")], &[]));
    let path = file.to_str().expect("UTF-8");
    assert!(is_svg(&[("XDG_CONFIG_HOME", "/nowhere")], &["--config", path]));
    write("\n[report]\nfromat = 'svg'\n", 0o644);
    check_refused(
        &report(&[], &[]),
        &[path, ":3: unknown setting `fromat`", "`format`?", "--help"],
    );
    write("[report]\nformat = 'svg'\n", 0o666);
    check_refused(&report(&[], &[]), &[path, "chmod go-w"]);
    check_refused(
        &report(&[], &["--config", "/nowhere"]),
        &["/nowhere", "No such file"],
    );
    write("[report]\nformat = 'svg'\noutput = '/etc/x.txt'\n", 0o600);
    chown(&file, Some(1), Some(1)).expect("root");
    check_refused(&report(&[], &[]), &[path, "user 1"]);
    // Like sudo when user 1 calls it.
    let output = report(&[("SUDO_UID", "1")], &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("warning: ")
            && errors.contains(":3: ignoring `output`")
            && errors.contains("one report"),
        "{errors}"
    );
}

/// `-q` and `-v` change the messages on standard error; the data stays.
#[test]
fn quiet_and_verbose_as_root() {
    require_root();
    let directory = directory("conventions-quiet");
    let program = compile(&directory, "amounts/plain.c", &["-O2"]);
    let messages = |flags: &[&str]| {
        let output = command()
            .args(flags)
            .args(["--format", "json", "--", program.to_str().expect("UTF-8")])
            .stdin(Stdio::null())
            .output()
            .expect("memleak was built");
        assert!(
            output
                .stdout
                .split(|&byte| byte == b'\n')
                .any(|line| line.starts_with(b"{"))
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (quiet, default, verbose) = (messages(&["-q"]), messages(&[]), messages(&["-v"]));
    assert!(
        !quiet.contains("tracing ") && default.contains("tracing "),
        "{quiet}\n{default}"
    );
    for steps in [
        "attached in steps: read mappings ",
        "report made in steps: settle ",
    ] {
        assert!(!default.contains(steps) && verbose.contains(steps), "{verbose}");
    }
    assert!(quiet.lines().all(|line| line.contains("warning: ")), "{quiet}");
}
