//! A terminal for the program under test: a pseudo-terminal of the kernel, and behind it an independent
//! emulator that shows what a user would see.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{FlowArg, LocalFlags, SpecialCharacterIndices, Termios, tcflow, tcgetattr};

use super::program::{PATIENCE, PROGRAM, require_root, run_tool};

/// A program on a terminal, most often `memleak`; killed when dropped.
pub struct Terminal {
    child: Child,
    master: Option<File>,
    reader: Option<JoinHandle<()>>,
    is_gone: Arc<AtomicBool>,
    /// Kept open, so that the terminal stays as it is left.
    slave: OwnedFd,
    path: PathBuf,
    emulator: Arc<Mutex<vt100::Parser>>,
    before: Termios,
}

/// Session of the program: one of its own that the terminal controls, as after a login, or the test's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    Own,
    None,
}

impl Terminal {
    /// Runs `memleak` with these arguments on a terminal of 80 columns and 24 rows.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(Session::Own, arguments, &[])
    }

    /// Runs `memleak` on such a terminal with these variables in its environment.
    #[track_caller]
    pub fn start_in(session: Session, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let memleak = Path::new(PROGRAM);
        Self::run(memleak, session, arguments, environment)
    }

    /// Runs another program.
    #[track_caller]
    pub fn run(program: &Path, session: Session, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        require_root();
        let (master, path) = open();
        let slave = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(&path);
        let slave = OwnedFd::from(slave.expect("the other end"));
        set_size(&path, 24, 80);
        // Before the program starts, as it may change them at once.
        let before = tcgetattr(&slave).expect("a terminal");
        let mut command = Command::new("env");
        // Under nohup, memleak would rightly stay when the terminal vanishes.
        command.arg("--default-signal=HUP");
        if session == Session::Own {
            command.args(["setsid", "--ctty"]);
        }
        let stream = || Stdio::from(slave.try_clone().expect("a descriptor"));
        // Otherwise the environment of the test run would decide about colours.
        for name in ["CI", "CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR"] {
            command.env_remove(name);
        }
        let child = command
            .arg(program)
            .args(arguments)
            .env("TERM", "xterm-256color")
            .envs(environment.iter().copied())
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .expect("env (apt-get install coreutils)");
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(number(24), number(80), 0)));
        let is_gone = Arc::default();
        let seen = master.try_clone().expect("a descriptor");
        let reader = emulate(seen, Arc::clone(&emulator), Arc::clone(&is_gone));
        Self {
            child,
            master: Some(master),
            reader: Some(reader),
            is_gone,
            before,
            path,
            slave,
            emulator,
        }
    }

    /// Gives `at` the emulator's screen and returns its result.
    pub fn look<T>(&self, at: impl FnOnce(&vt100::Screen) -> T) -> T {
        at(self.emulator.lock().expect("the emulator runs").screen())
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        self.look(vt100::Screen::contents)
    }

    /// Waits until the screen is as wanted, and returns it.
    #[track_caller]
    pub fn await_screen(&mut self, description: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if is_shown(&screen) {
                // It may be half drawn.
                thread::sleep(Duration::from_millis(20));
                if self.screen() == screen {
                    return screen;
                }
                continue;
            }
            let ended = self.child.try_wait().expect("a child of ours");
            assert!(
                began.elapsed() < *PATIENCE / 4 && ended.is_none(),
                "no {description}; ended: {ended:?}; on the screen:\n{screen}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub fn await_text(&mut self, text: &str) -> String {
        self.await_screen(text, |screen| screen.contains(text))
    }

    /// Types these keys.
    #[track_caller]
    pub fn press(&mut self, keys: &str) {
        let master = self.master.as_mut().expect("the terminal is there");
        master.write_all(keys.as_bytes()).expect("the terminal is there");
    }

    /// Gives the terminal another size, as dragging its corner does.
    #[track_caller]
    pub fn resize(&mut self, rows: u16, columns: u16) {
        let size = (number(rows), number(columns));
        self.emulator
            .lock()
            .expect("the emulator runs")
            .set_size(size.0, size.1);
        set_size(&self.path, rows, columns);
    }

    /// Stops the terminal's output, as Control-S or a dead line does: from then on it takes nothing.
    #[track_caller]
    pub fn stop_output(&self) {
        tcflow(&self.slave, FlowArg::TCOOFF).expect("a terminal");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has ended and checks that the terminal is as it was before. Returns the
    /// status, and what is on the screen.
    #[track_caller]
    pub fn wait(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("a child of ours").code();
        self.await_rest();
        let screen = self.screen();
        assert!(!self.look(vt100::Screen::alternate_screen), "{screen}");
        assert!(!self.look(vt100::Screen::hide_cursor), "{screen}");
        let now = tcgetattr(&self.slave).expect("a terminal");
        assert_eq!(now, self.before);
        assert!(now.local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON));
        assert_eq!(now.control_chars[SpecialCharacterIndices::VMIN as usize], 1);
        (status, screen)
    }

    /// Waits until the emulator has shown everything that was written.
    fn await_rest(&self) {
        let began = Instant::now();
        while began.elapsed() < *PATIENCE {
            let is_shown = self.look(|_| !has_input(self.master.as_ref(), PollTimeout::ZERO));
            if is_shown {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the emulator stands still");
    }

    /// Waits until the program has ended, however it leaves the terminal.
    #[track_caller]
    pub fn wait_for_end(mut self) -> Option<i32> {
        self.child.wait().expect("a child of ours").code()
    }

    /// Takes the terminal away, as closing its window does, and waits for the end.
    #[track_caller]
    pub fn hang_up(mut self) -> Option<i32> {
        self.is_gone.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it has no reason to panic");
        }
        self.master = None;
        self.child.wait().expect("a child of ours").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens a pseudo-terminal. Returns the emulator's end, which other programs that are started meanwhile do
/// not inherit, and the name of the other end.
fn open() -> (File, PathBuf) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags).expect("a pseudo-terminal");
    grantpt(&master)
        .and_then(|()| unlockpt(&master))
        .expect("our own");
    let path = ptsname_r(&master).expect("a name");
    (File::from(OwnedFd::from(master)), path.into())
}

fn set_size(path: &Path, rows: u16, columns: u16) {
    let (rows, columns) = (rows.to_string(), columns.to_string());
    let mut stty = Command::new("stty");
    run_tool(stty.arg("-F").arg(path).args(["rows", &rows, "cols", &columns]));
}

fn number(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("above 0")
}

/// Feeds output to the emulator until the terminal is gone. Reads only with the emulator's lock: if there is
/// nothing to read while another has the lock, everything is on the screen.
fn emulate(
    mut master: File,
    emulator: Arc<Mutex<vt100::Parser>>,
    is_gone: Arc<AtomicBool>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while !is_gone.load(Ordering::Relaxed) {
            if !has_input(Some(&master), PollTimeout::from(20_u8)) {
                continue;
            }
            let mut emulator = emulator.lock().expect("the test runs");
            match master.read(&mut bytes) {
                Ok(read @ 1..) => emulator.process(&bytes[..read]),
                Ok(0) | Err(_) => return,
            }
        }
    })
}

/// Returns true if there is something to read within `timeout`.
fn has_input(master: Option<&File>, timeout: PollTimeout) -> bool {
    let Some(master) = master else {
        return false;
    };
    let mut fds = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, timeout) == Ok(1)
}
