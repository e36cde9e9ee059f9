//! System programs that memleak runs. They are looked up in fixed directories only, and get an empty
//! environment: ours can contain secrets, and variables that change a program's behaviour.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Directories of system programs. Not PATH: under sudo, it may be the caller's.
const DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin"];

/// A command for the program `name`, with empty standard input and discarded standard error.
///
/// # Errors
///
/// If no directory has it; the message is one line.
pub fn command(name: &str) -> io::Result<Command> {
    let mut paths = DIRECTORIES
        .iter()
        .map(|directory| PathBuf::from(directory).join(name));
    let path = paths.find(|path| path.is_file()).ok_or_else(|| {
        let places = DIRECTORIES.join(", ");
        io::Error::new(io::ErrorKind::NotFound, format!("`{name}` not found in {places}"))
    })?;
    let mut command = Command::new(path);
    command
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program is the system's and gets an empty environment; a program that the system lacks is not
    /// searched for elsewhere.
    #[test]
    fn programs_get_an_empty_environment() {
        // Cargo sets some variables.
        assert!(std::env::vars_os().count() > 0);
        let env = command("env").expect("every system has it");
        assert!(env.get_program().to_string_lossy().starts_with("/usr/bin/"));
        let output = { env }.output().expect("it runs");
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        for name in ["no-such-program", "cargo-nextest-of-nobody"] {
            assert_eq!(command(name).expect_err(name).kind(), io::ErrorKind::NotFound);
        }
    }
}
