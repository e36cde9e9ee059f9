//! Programs of the system that memleak runs: found where systems keep them, and nowhere else, and started with nothing of
//! our environment, in which there can be secrets, and what changes the program.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Where systems keep them. Not by PATH, which can be anybody's: under sudo it may be the caller's.
const DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin"];

/// A program by this name, with nothing to read and nobody who reads its errors.
///
/// # Errors
///
/// There is none; in one line.
pub(crate) fn command(name: &str) -> io::Result<Command> {
    let mut paths = DIRECTORIES
        .iter()
        .map(|directory| PathBuf::from(directory).join(name));
    let path = paths.find(|path| path.is_file()).ok_or_else(|| {
        let places = DIRECTORIES.join(", ");
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("`{name}` not found in {places}"),
        )
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

    /// What is run is the system's, with an empty environment; what the system does not have is not sought elsewhere.
    #[test]
    fn nothing_of_ours() {
        // Cargo has given us some.
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
