//! The program that is traced: how it is built, run and asked.

use std::fmt;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use unwind_tables::walk::MAX_FRAMES;

/// Compiler flags for the program, and the name of the result.
#[derive(Clone, Copy)]
pub(crate) struct Build {
    pub(crate) name: &'static str,
    flags: &'static [&'static str],
    pub(crate) frame_pointers: bool,
}

/// Build without frame pointers, as distributions have it.
pub(crate) const PLAIN: Build = Build {
    name: "without frame pointers",
    flags: &["-fomit-frame-pointer"],
    frame_pointers: false,
};
/// Build with frame pointers, for walks along them.
pub(crate) const FRAME_POINTERS: Build = Build {
    name: "with frame pointers",
    flags: &["-fno-omit-frame-pointer"],
    frame_pointers: true,
};
/// Frames of up to 4 KiB: a stack of 40 is 80 KiB.
pub(crate) const LARGE_FRAMES: Build = Build {
    name: "large frames",
    flags: &["-fomit-frame-pointer", "-DFRAME_UNIT=448"],
    frame_pointers: false,
};

/// Number and order of the stacks that pairs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacks {
    /// One.
    Hot,
    /// 32, at random.
    Varied,
    /// 4096, in turn.
    Distinct,
    /// One, of frames of one function.
    Recursive,
}

impl Stacks {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Varied => "varied",
            Self::Distinct => "distinct",
            Self::Recursive => "recursive",
        }
    }
}

/// Depth of the shallowest stack of which a frame is left out.
#[allow(clippy::cast_possible_truncation, reason = "it is small")]
const FIRST_LEFT_OUT: u32 = MAX_FRAMES as u32 + 1;

/// Work for the program, without the number of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) stacks: Stacks,
    pub(crate) depth: u32,
    pub(crate) threads: u32,
}

impl Load {
    pub(crate) const fn new(stacks: Stacks, depth: u32) -> Self {
        Self {
            stacks,
            depth,
            threads: 1,
        }
    }

    /// Frames of its shallowest stack.
    pub(crate) fn least_frames(self) -> u32 {
        match self.stacks {
            Stacks::Varied => self.depth - 3,
            Stacks::Hot | Stacks::Distinct => self.depth,
            // Recursions with frames left out share one stack record, whose number of frames is that of the
            // first.
            Stacks::Recursive => self.depth.min(FIRST_LEFT_OUT),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.stacks.name(), self.depth)?;
        match self.threads {
            1 => Ok(()),
            threads => write!(f, ", {threads} threads"),
        }
    }
}

pub(crate) fn compile(build: &Build) -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/probe_cost/target.c");
    let name = build.name.replace(' ', "_");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe_cost_{name}"));
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .args(build.flags)
        .arg(source);
    let status = compiler
        .status()
        .context("cannot run gcc (apt-get install gcc)")?;
    ensure!(status.success(), "gcc could not compile the target");
    Ok(program)
}

/// CPU time of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// CPU time in round trips through a pipe, which are measured beside it, as the speed of the processor
    /// varies.
    pub(crate) round_trips: f64,
    /// Duration of a round trip at that time, in nanoseconds.
    pub(crate) reference: f64,
}

/// A running target; ended when dropped.
pub(crate) struct Target {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Target {
    pub(crate) fn start(program: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().context("a pipe was asked for")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe was asked for")?).lines();
        let mut target = Self {
            child,
            commands,
            answers,
        };
        // Makes the program allocate buffers of standard input and output, and threads' stacks.
        target.ask(
            Load {
                threads: 2,
                ..Load::new(Stacks::Hot, 10)
            },
            1,
        )?;
        Ok(target)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has each thread do `pairs` pairs, and returns the cost of one.
    pub(crate) fn ask(&mut self, load: Load, pairs: u32) -> anyhow::Result<Cost> {
        let Load {
            stacks,
            depth,
            threads,
        } = load;
        writeln!(self.commands, "{} {depth} {pairs} {threads}", stacks.name())?;
        let Some(answer) = self.answers.next() else {
            bail!("the target ended")
        };
        let answer = answer?;
        let cost = answer.split_once(' ').and_then(|(cost, reference)| {
            Some(Cost {
                round_trips: cost.parse().ok()?,
                reference: reference.parse().ok()?,
            })
        });
        cost.with_context(|| format!("the target answers with two numbers, not {answer:?}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
