//! Every stack of runtimes as the distribution built them, and of a host of plug-ins, is walked from before
//! main to the exit: libraries that they load on the way allocate before their tables are in the kernel.
//! Compared with the witness, as in [`super::ground_truth`].

use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::program::{compile, compile_as, directory, stock};
use memleak_test::witness::{Accounts, Shares, Witness};

fn test_directory(test: &str) -> PathBuf {
    directory(&format!("runtimes-{test}"))
}

/// Runs a program under both; checks that all walks that had to be finished in user space were, at least
/// `least_finished`, and that there were at least `least_blocks` allocations.
#[track_caller]
fn watch(directory: &Path, command: &mut Command, least_finished: u64, least_blocks: u64) -> Accounts {
    let accounts = Witness::preloaded(directory).watch_whole(command, &[]);
    let unwinding = &accounts.report.unwinding;
    assert!(
        unwinding.finished_in_user_space >= least_finished,
        "{unwinding:?}"
    );
    assert_eq!(unwinding.not_finished, 0, "{unwinding:?}");
    let allocated = accounts.report.allocated();
    assert!(allocated.blocks >= least_blocks, "{allocated:?}");
    accounts
}

/// Runs a program whose stacks go through code without CFI, where the witness ends.
#[track_caller]
#[allow(clippy::print_stderr, reason = "what the test measured")]
fn check_up_to_code_without_cfi(
    directory: &Path,
    command: &mut Command,
    least_finished: u64,
    least_blocks: u64,
) -> Shares {
    let accounts = watch(directory, command, least_finished, least_blocks);
    let (accounts, shares) = accounts.up_to_code_without_cfi();
    accounts.check_equal();
    eprintln!("{}: {shares:?}", directory.display());
    shares
}

/// The interpreter with extension modules.
#[test]
fn ruby() {
    let script = "require 'json'; require 'set'; require 'digest'; require 'zlib'; require 'socket'; require 'bigdecimal'; \
                  puts JSON.parse(JSON.generate((1..200).map { |i| {i => i.to_s * 3} })).size; \
                  Thread.new { puts Zlib.crc32('a' * 10_000) }.join; puts Digest::SHA256.hexdigest('x')";
    let mut command = Command::new(stock("/usr/bin/ruby", "ruby"));
    command.args(["-e", script]);
    let accounts = watch(&test_directory("ruby"), &mut command, 100, 50_000);
    accounts.check_equal();
    accounts.check_complete();
}

/// The interpreter with extensions, regular expressions and exceptions.
#[test]
fn php() {
    let script = "$a = []; for ($i = 0; $i < 3000; $i++) { $a[] = json_encode(['k' => $i, 'v' => str_repeat('x', $i % 90)]); } \
                  echo count(array_map('json_decode', $a)), preg_replace('/(a)(b)?/', '$2', 'abaab'), \"\\n\"; \
                  try { new DateTime('no date'); } catch (Exception $e) { echo 'caught', \"\\n\"; }";
    let mut command = Command::new(stock("/usr/bin/php", "php-cli"));
    command.args(["-r", script]).env("USE_ZEND_ALLOC", "0");
    let accounts = watch(&test_directory("php"), &mut command, 0, 20_000);
    accounts.check_equal();
    accounts.check_complete();
}

/// A host of plug-ins in C++, of which two are loaded at once, at addresses where others were before.
#[test]
fn plugin_host() {
    let directory = test_directory("plugin-host");
    let plugins = [1, 2, 3].map(|number| {
        let flags = ["-O2", "-shared", "-fPIC", &format!("-DPLUGIN={number}")];
        compile_as(
            &directory.join(format!("plugin{number}.so")),
            "runtimes/plugin.cpp",
            &flags,
        )
    });
    let host = compile(
        &directory,
        "runtimes/plugin_host.cpp",
        &["-O2", "-fomit-frame-pointer", "-pthread"],
    );
    let mut command = Command::new(host);
    command.arg("60").args(plugins);
    // The function that calls destructors of a plug-in has no CFI (crtstuff.c of GCC), but a frame pointer.
    let shares = check_up_to_code_without_cfi(&directory, &mut command, 1000, 100_000);
    assert_eq!(shares.short, 0, "{shares:?}");
}

/// The virtual machine with its libraries and its own threads.
#[test]
fn node() {
    let script = "const zlib = require('zlib'), crypto = require('crypto'); \
                  for (let i = 0; i < 300; i++) crypto.createHash('sha256').update(zlib.gzipSync('x'.repeat(i * 10))).digest('hex'); \
                  require('fs').readdirSync('/usr/lib').forEach(name => JSON.parse(JSON.stringify({name})));";
    let mut command = Command::new(stock("/usr/bin/node", "nodejs"));
    command.args(["-e", script]);
    let shares = check_up_to_code_without_cfi(&test_directory("node"), &mut command, 0, 10_000);
    assert!(shares.short * 1000 <= shares.exact + shares.deeper, "{shares:?}");
}

/// The virtual machine, in which the witness ends at generated code. (`java.rs` tests that.)
#[test]
fn java() {
    let mut command = Command::new(stock("/usr/bin/java", "default-jdk-headless"));
    command.args(["-XX:-UsePerfData", "-Xint", "-version"]);
    let shares = check_up_to_code_without_cfi(&test_directory("java"), &mut command, 100, 4000);
    assert!(shares.short * 100 <= shares.exact + shares.deeper, "{shares:?}");
}
