//! The witness of `tests/programs/stacks/ground_truth.c`, and how its account of a program compares with
//! memleak's.
//!
//! Three things are made equal beforehand:
//! - libgcc reports a frame at address 0 above the last one; the witness takes it as the end of the stack.
//! - The witness's own frame, the caller of the allocator and so memleak's first, is left out.
//! - Modules are known by their file name and addresses are relative to the load address.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use super::amount::Amount;
use super::memleak::Memleak;
use super::program::{Program, compile_as, run_tool, source};
use super::report::{Frame, Report, Stack};

/// The library's file name.
const LIBRARY: &str = "libground_truth.so";

/// Prefix of the functions of a witness that is linked into the program.
const WRAPPER: &str = "__wrap_";

/// A module's file name and an address in it.
pub type Place = (Rc<str>, u64);

/// Key that tells calls apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub allocator: String,
    /// True if the stack is known to its end.
    pub complete: bool,
    /// Frames of the stack, innermost first, without the witness's own.
    pub frames: Vec<Place>,
    /// Number of frames, the witness's own included, before those that were left out; the witness leaves out
    /// none.
    pub left_out_after: Option<u64>,
}

/// Allocated amount by call.
pub type Calls = BTreeMap<Call, Amount>;

/// Accounts of the same time by memleak and by the witness.
pub struct Accounts {
    pub report: Report,
    pub reported: Calls,
    pub witnessed: Calls,
}

/// Numbers of allocations on which memleak and the witness agree as far as the witness goes, by how far both
/// went.
#[derive(Debug)]
pub struct Shares {
    /// Followed to the end of the stack by both.
    pub exact: u64,
    /// Followed to the end by memleak only.
    pub deeper: u64,
    /// Not followed to the end by memleak.
    pub short: u64,
}

/// Conversation with a program: up to its first pause, and from there through its work to the next.
pub struct Script {
    pub begin: fn(&mut Program),
    pub work: fn(&mut Program),
}

/// Conversation with a program that says "ready" and "done".
pub const READY_TO_DONE: Script = Script {
    begin: |program| program.expect("ready"),
    work: |program| program.step("done"),
};

/// Functions that a witness linked into a static program wraps.
const WRAPPED: [&str; 5] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"];

/// A witness that programs are started with.
pub struct Witness {
    /// Library to preload; `None` if the witness is linked into the program.
    library: Option<PathBuf>,
    records: PathBuf,
}

impl Witness {
    /// Compiles the witness as a library to be preloaded.
    #[track_caller]
    pub fn preloaded(directory: &Path) -> Self {
        Self::preloaded_with(directory, &[])
    }

    /// Compiles the witness as a library to be preloaded into programs that call functions of jemalloc's own.
    #[track_caller]
    pub fn preloaded_for_jemalloc(directory: &Path) -> Self {
        Self::preloaded_with(directory, &["-DWITH_JEMALLOC"])
    }

    /// Compiles the witness as a library to be preloaded into programs with deep stacks and few threads.
    #[track_caller]
    pub fn of_deep_stacks(directory: &Path) -> Self {
        Self::preloaded_with(directory, &["-DMAX_DEPTH=6000"])
    }

    #[track_caller]
    fn preloaded_with(directory: &Path, flags: &[&str]) -> Self {
        let all = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-builtin"];
        let library = compile_as(
            &directory.join(LIBRARY),
            "stacks/ground_truth.c",
            &[&all, flags].concat(),
        );
        Self {
            library: Some(library),
            records: directory.join("records"),
        }
    }

    /// Compiles the witness for a static program, which `compiler` is to link with the arguments that are
    /// returned.
    #[track_caller]
    pub fn within(directory: &Path, compiler: &str) -> (Self, Vec<String>) {
        let object = directory.join("ground_truth.o");
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-fPIE", "-fno-builtin", "-DWRAPPED", "-c", "-o"])
            .arg(&object)
            .arg(source("stacks/ground_truth.c"));
        run_tool(&mut command);
        let wrapped = WRAPPED.map(|function| format!("-Wl,--wrap={function}"));
        let object = object.to_string_lossy().into_owned();
        let witness = Self {
            library: None,
            records: directory.join("records"),
        };
        (witness, [object].into_iter().chain(wrapped).collect())
    }

    /// Starts `command` with the witness.
    #[track_caller]
    pub fn start(&self, command: &mut Command) -> Program {
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        Program::spawn(command.env("GROUND_TRUTH", &self.records))
    }

    /// Runs `command` under the witness and memleak, both from the first pause of `script` to the last.
    #[track_caller]
    pub fn watch(&self, command: &mut Command, script: &Script, memleak_flags: &[&str]) -> Accounts {
        let mut program = self.start(command);
        (script.begin)(&mut program);
        program.await_reading();
        program.signal("USR1");
        program.expect("recording");
        let memleak = Memleak::attach(program.pid(), memleak_flags);
        (script.work)(&mut program);
        program.await_reading();
        let report = memleak.finish();
        program.signal("USR2");
        program.expect("recorded");
        self.accounts(report)
    }

    /// Runs a program that is not made for tests under the witness and memleak, both from before its main to
    /// its exit.
    #[track_caller]
    pub fn watch_whole(&self, command: &mut Command, memleak_flags: &[&str]) -> Accounts {
        let mut program = self.start(command.env("GROUND_TRUTH_GATE", "1"));
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), memleak_flags);
        program.send_line("");
        self.finish_whole(&mut program, memleak)
    }

    /// Ends [`Witness::watch_whole`] for a program that is about to exit.
    #[track_caller]
    pub fn finish_whole(&self, program: &mut Program, memleak: Memleak) -> Accounts {
        while program.line() != "done" {}
        let report = memleak.finish();
        program.send_line("");
        program.expect("recorded");
        self.accounts(report)
    }

    #[track_caller]
    fn accounts(&self, report: Report) -> Accounts {
        report.check_sums();
        Accounts {
            reported: reported(&report, |stack| (&stack.frames, true)),
            witnessed: self.witnessed(),
            report,
        }
    }

    /// Reads the witness's account.
    #[track_caller]
    fn witnessed(&self) -> Calls {
        let text = fs::read_to_string(&self.records).expect("the witness's records");
        let mut records = Records::default();
        for line in text.lines() {
            records
                .add(line)
                .unwrap_or_else(|| panic!("not a record: {line}"));
        }
        records.calls
    }
}

impl Accounts {
    /// Checks that both say the same: the same stacks, each with the same number of calls and bytes.
    #[track_caller]
    pub fn check_equal(&self) {
        let report = &self.report;
        assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
        let differences = self.differences();
        assert!(differences.is_empty(), "{differences}{:?}", report.unwinding);
    }

    /// Takes the witness's last frames as ends, for objects in which libgcc misses the end that the CFI of
    /// the first function states. The frames still have to be the same.
    #[must_use]
    pub fn with_witnessed_ends(mut self) -> Self {
        let mut calls = Calls::new();
        for (call, amount) in self.witnessed {
            let complete = Call {
                complete: true,
                ..call
            };
            add(&mut calls, complete, amount);
        }
        self.witnessed = calls;
        self
    }

    /// Cuts memleak's stacks at the first frame found by frame pointer, which libgcc does not follow.
    #[must_use]
    pub fn without_frame_pointers(mut self) -> Self {
        self.reported = reported(&self.report, |stack| {
            let by_cfi = |frame: &&Frame| ["probe", "cfi", "python"].contains(&&*frame.found_by);
            let count = stack.frames.iter().take_while(by_cfi).count();
            (&stack.frames[..count], count == stack.frames.len())
        });
        self
    }

    /// Cuts stacks at code without CFI, where libgcc ends, and drops the frame there, whose module only
    /// memleak may know. Returns the numbers of allocations by how far they were followed.
    pub fn up_to_code_without_cfi(mut self) -> (Self, Shares) {
        let complete = |calls: &Calls| -> u64 {
            let complete = calls.iter().filter(|(call, _)| call.complete);
            complete.map(|(_, amount)| amount.blocks).sum()
        };
        let exact = complete(&self.witnessed);
        let shares = Shares {
            exact,
            deeper: complete(&self.reported) - exact,
            short: self.reported.values().map(|amount| amount.blocks).sum::<u64>() - complete(&self.reported),
        };
        self = self.without_frame_pointers();
        for calls in [&mut self.reported, &mut self.witnessed] {
            let mut cut = Calls::new();
            for (mut call, amount) in std::mem::take(calls) {
                if !call.complete {
                    call.frames.pop();
                }
                add(&mut cut, call, amount);
            }
            *calls = cut;
        }
        (self, shares)
    }

    /// Marks all stacks of the witness as complete, for programs where they are and libgcc cannot know it.
    #[must_use]
    pub fn with_whole_witness(mut self) -> Self {
        let mut whole = Calls::new();
        for (call, amount) in std::mem::take(&mut self.witnessed) {
            let call = Call {
                complete: true,
                ..call
            };
            add(&mut whole, call, amount);
        }
        self.witnessed = whole;
        self
    }

    /// Checks that both follow every stack to its end.
    #[track_caller]
    pub fn check_complete(&self) {
        for call in self.witnessed.keys().chain(self.reported.keys()) {
            assert!(call.complete, "without its end: {call:?}\n{}", self.report);
        }
    }

    /// Stacks on which the two do not agree, for people.
    pub fn differences(&self) -> String {
        let (ours, theirs) = (&self.reported, &self.witnessed);
        let only_theirs = theirs.keys().filter(|call| !ours.contains_key(call));
        let different: Vec<&Call> = ours
            .keys()
            .chain(only_theirs)
            .filter(|call| ours.get(call) != theirs.get(call))
            .collect();
        if different.is_empty() {
            return String::new();
        }
        let mut text = String::new();
        for call in different.iter().take(6) {
            text += &format!(
                "{}, complete: {}; memleak {:?}, witness {:?}\n",
                call.allocator,
                call.complete,
                ours.get(call),
                theirs.get(call)
            );
            for (module, address) in &call.frames {
                text += &format!("    {module} {address:#x}\n");
            }
        }
        text + &format!(
            "{} differences; {} stacks by memleak, {} by the witness\n",
            different.len(),
            ours.len(),
            theirs.len()
        )
    }
}

/// Returns the last part of a path. The vDSO has different names in the two accounts.
fn file_name(path: &str) -> &str {
    match path.rsplit('/').next().unwrap_or(path) {
        "linux-vdso.so.1" => "[vdso]",
        name => name,
    }
}

/// Converts memleak's account: of each stack the frames that `part` selects, without functions of Python,
/// which no walk finds. A call is complete if its stack is, and `part` says that it selects all frames.
#[track_caller]
fn reported(report: &Report, part: impl Fn(&Stack) -> (&[Frame], bool)) -> Calls {
    let mut calls = Calls::new();
    let mut names: HashMap<String, Rc<str>> = HashMap::new();
    let mut place = |frame: &Frame| -> Place {
        let name = file_name(frame.module_name());
        let name = names.entry(name.to_owned()).or_insert_with(|| name.into());
        let address = frame.module.as_ref().map_or(0, |_| frame.svma());
        (name.clone(), address)
    };
    for stack in &report.stacks {
        let (frames, to_the_end) = part(stack);
        let (own, frames) = frames.split_first().expect("a stack has frames");
        assert!(
            own.module_name() == LIBRARY || own.name().starts_with(WRAPPER),
            "called past the witness:\n{stack}"
        );
        let is_native = |frame: &&Frame| frame.found_by != "python";
        let call = Call {
            allocator: stack.allocator.clone(),
            complete: to_the_end && stack.end == "complete",
            frames: frames.iter().filter(is_native).map(&mut place).collect(),
            left_out_after: stack.left_out.map(|left_out| left_out.after),
        };
        add(&mut calls, call, stack.allocated);
    }
    calls
}

fn add(calls: &mut Calls, call: Call, amount: Amount) {
    let sum = calls.entry(call).or_default();
    *sum = [*sum, amount].into_iter().sum();
}

/// Contents of the witness's records, as far as they were read.
#[derive(Default)]
struct Records {
    /// Place of each frame, and its caller's number, by number; 0 is no frame.
    frames: HashMap<u32, (Place, u32)>,
    /// File names of modules, by path.
    modules: HashMap<String, Rc<str>>,
    calls: Calls,
}

impl Records {
    fn add(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["frame", number, caller, module, address] => {
                let module = self
                    .modules
                    .entry(module.to_owned())
                    .or_insert_with(|| resolved_name(module));
                let place = (module.clone(), u64::from_str_radix(address, 16).ok()?);
                self.frames
                    .insert(number.parse().ok()?, (place, caller.parse().ok()?));
            }
            ["stack", allocator, blocks, bytes, end, frame] => {
                let call = Call {
                    allocator: allocator.to_owned(),
                    complete: end == "end",
                    frames: self.frames_from(frame.parse().ok()?)?,
                    left_out_after: None,
                };
                let amount = Amount {
                    bytes: bytes.parse().ok()?,
                    blocks: blocks.parse().ok()?,
                };
                add(&mut self.calls, call, amount);
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns a frame's place, and those of its callers.
    fn frames_from(&self, mut number: u32) -> Option<Vec<Place>> {
        let mut frames = Vec::new();
        while number != 0 {
            let (place, caller) = self.frames.get(&number)?;
            frames.push(place.clone());
            number = *caller;
        }
        Some(frames)
    }
}

/// Returns the file name behind links, by which the loader knows libraries.
fn resolved_name(path: &str) -> Rc<str> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    file_name(&real.to_string_lossy()).into()
}
