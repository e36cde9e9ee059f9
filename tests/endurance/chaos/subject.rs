//! Programs to trace. Each does round after round (see `programs/chaos/rounds.h`) and prints a line for each.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::left_behind::tree;
use memleak_test::program::{PATIENCE, compile_as, library, source, stock};

/// Exit status of programs that did all their rounds.
const DONE: i32 = 42;

/// A program, and how to build it: `build` returns the words that start it, some of which come after ROUNDS
/// and STOP.
pub struct Subject {
    pub name: &'static str,
    pub build: fn(&Path) -> Words,
    /// True if its children are worth tracing.
    pub has_children: bool,
}

pub struct Words {
    program: Vec<PathBuf>,
    more: Vec<PathBuf>,
    /// Library to start it with.
    preloaded: Option<PathBuf>,
    /// True if the process to trace is not the program, but one that it starts.
    starts_another: bool,
}

impl Words {
    fn of(program: &[PathBuf]) -> Self {
        Self {
            program: program.to_vec(),
            more: Vec::new(),
            preloaded: None,
            starts_another: false,
        }
    }
}

const fn subject(name: &'static str, build: fn(&Path) -> Words) -> Subject {
    Subject {
        name,
        build,
        has_children: false,
    }
}

pub const EXCEPTIONS: Subject = subject("exceptions", |directory| {
    Words::of(&[build(directory, "exceptions.cpp")])
});
pub const SCARCE: Subject = subject("scarce", |directory| Words::of(&[build(directory, "scarce.c")]));
pub const PYTHON: Subject = subject("python", |_| {
    Words::of(&[stock("/usr/bin/python3", "python3"), source("chaos/work.py")])
});
pub const ANNOUNCED: Subject = subject("announced", |directory| Words {
    preloaded: Some(library(directory)),
    ..(PYTHON.build)(directory)
});
pub const REDIS: Subject = subject("redis", |_| {
    stock("/usr/bin/redis-server", "redis-server");
    Words {
        starts_another: true,
        ..Words::of(&[
            stock("/usr/bin/python3", "python3"),
            source("chaos/redis_client.py"),
        ])
    }
});
pub const LIBRARIES: Subject = subject("libraries", |directory| {
    let library =
        |name: &str, source| compile_as(&directory.join(name), source, &["-O2", "-shared", "-fPIC"]);
    Words {
        more: vec![
            library("first.so", "mappings/fleeting_library.c"),
            library("second.so", "mappings/fleeting_library.c"),
            library("third.so", "chaos/passing_cxx.cpp"),
        ],
        ..Words::of(&[build(directory, "passing.c")])
    }
});
pub const SHELL: Subject = Subject {
    has_children: true,
    ..subject("shell", |_| {
        Words::of(&[stock("/bin/dash", "dash"), source("chaos/children.sh")])
    })
};
pub const WAYS_OUT: Subject = Subject {
    has_children: true,
    ..subject("ways_out", |directory| {
        Words::of(&[build(directory, "ways_out.c")])
    })
};

fn build(directory: &Path, name: &str) -> PathBuf {
    let program = directory.join(Path::new(name).with_extension(""));
    compile_as(
        &program,
        &format!("chaos/{name}"),
        &["-O2", "-fomit-frame-pointer", "-pthread"],
    )
}

/// A program at work; killed, with all that it started, when dropped.
pub struct Run {
    child: Child,
    /// The process to trace.
    pub pid: u32,
    directory: PathBuf,
}

/// Status and output of a program that has ended.
pub struct End {
    pub status: ExitStatus,
    pub output: String,
}

impl Run {
    /// Starts it in a new directory, for `rounds` rounds, or until it is stopped if that is 0.
    #[track_caller]
    pub fn start(words: &Words, directory: &Path, rounds: u64) -> Self {
        fs::create_dir(directory).expect("a new directory");
        let file = |name| File::create(directory.join(name)).expect("a new file");
        let mut command = command(words, directory, rounds);
        let child = command
            .stdin(Stdio::null())
            .stdout(file("output"))
            .stderr(file("errors"))
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut run = Self {
            pid: child.id(),
            child,
            directory: directory.to_owned(),
        };
        if words.starts_another {
            run.pid = run.await_pid();
        }
        run
    }

    /// Waits until an allocator is mapped: a program that was executed just now has nothing to probe yet.
    #[track_caller]
    pub fn await_allocator(&mut self) {
        let began = Instant::now();
        let maps = format!("/proc/{}/maps", self.pid);
        while !fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("/libc.so.6")) {
            self.assert_goes_on("before it has loaded its allocator");
            assert!(began.elapsed() < *PATIENCE, "it loads no allocator");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn await_pid(&mut self) -> u32 {
        let began = Instant::now();
        loop {
            if let Ok(text) = fs::read_to_string(self.directory.join("pid")) {
                return text.parse().expect("a pid");
            }
            self.assert_goes_on("before it says its pid");
            assert!(began.elapsed() < *PATIENCE, "it says no pid");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn assert_goes_on(&mut self, moment: &str) {
        if let Some(status) = self.child.try_wait().expect("a child of ours") {
            let errors = fs::read_to_string(self.directory.join("errors")).unwrap_or_default();
            panic!("{moment}: the program ended with {status}: {errors}");
        }
    }

    /// Tells it to stop after its round.
    #[track_caller]
    pub fn stop(self) -> End {
        File::create(self.directory.join("stop")).expect("a new file");
        self.end()
    }

    /// Waits until it ends.
    #[track_caller]
    pub fn end(mut self) -> End {
        let status = self.child.wait().expect("a child of ours");
        let read = |name| fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        assert_eq!(
            (status.code(), status.signal()),
            (Some(DONE), None),
            "{}",
            read("errors")
        );
        End {
            status,
            output: read("output"),
        }
    }
}

/// Returns the command that starts it in `directory`.
pub fn command(words: &Words, directory: &Path, rounds: u64) -> Command {
    let mut all = words.program.iter().map(|word| word.as_os_str());
    let mut command = Command::new(all.next().expect("a program"));
    command
        .args(all)
        .arg(rounds.to_string())
        .arg(directory.join("stop"))
        .args(&words.more);
    command
        .current_dir(directory)
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "1")
        .envs(words.preloaded.iter().map(|library| ("LD_PRELOAD", library)));
    command
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        for pid in tree(self.child.id()) {
            _ = kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), Signal::SIGKILL);
        }
        _ = self.child.wait();
    }
}
