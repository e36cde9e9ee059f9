//! The answers of `addr2line` of binutils, and of programs like it.

use super::*;

/// The functions of the calls before `addresses`, innermost first, as people write their names.
pub(super) fn calls(file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let lookups: Vec<u64> = addresses.iter().map(|address| address - 1).collect();
    let mut chains = chains("addr2line", &["-C"], file, &lookups);
    for (_, file, _) in chains.iter_mut().flatten() {
        *file = base_name(file);
    }
    chains
}

/// The functions at `addresses`, innermost first, by the linker's names and with whole paths, as `reader`
/// says.
pub(super) fn chains_by(reader: &str, file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    chains(reader, &[], file, addresses)
}

/// Runs `reader` and returns its output. From elfutils 0.192 on, its status also says that an address has no
/// line.
fn answers(reader: &str, arguments: &[&str]) -> String {
    let output = Command::new(reader).args(arguments).output().expect(reader);
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_answer = matches!(output.status.code(), Some(0 | 1)) && errors.is_empty();
    assert!(
        is_answer || output.status.success(),
        "{reader} {arguments:?}: {errors}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn chains(reader: &str, flags: &[&str], file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let lookups: Vec<String> = addresses.iter().map(|address| format!("{address:#x}")).collect();
    let mut arguments = [&["-a", "-i", "-f", "-e", text(file)], flags].concat();
    arguments.extend(lookups.iter().map(String::as_str));
    let output = answers(reader, &arguments);
    let mut chains: Vec<Vec<Level>> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            chains.push(Vec::new());
            continue;
        }
        let place = lines.next().expect("two lines for each function");
        let place = place.split(" (discriminator").next().expect("split gives one");
        let (file, number) = place.rsplit_once(':').expect("file:line");
        let chain = chains.last_mut().expect("an address comes first");
        chain.push((line.to_owned(), file.to_owned(), number.to_owned()));
    }
    assert_eq!(chains.len(), addresses.len());
    chains
}
