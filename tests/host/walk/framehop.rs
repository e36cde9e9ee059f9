//! framehop, an unwinder that shares nothing with ours but gimli's reader of CFI, finds the same callers:
//! over recorded stacks, and at every call of real objects. Comments say which of the two is right where they
//! differ.

use std::fs;
use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module as Framehop, Unwinder};
use memleak::allocator::calls;
use memleak::process::MappedCode;
use memleak_test::program::stock;
use memleak_test::recorded::{BUILDS, Published, Scene};
use object::{Object, ObjectSection};
use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias};
use unwind_tables::elf::ElfView;
use unwind_tables::image::ImageView;
use unwind_tables::mapping::{self, Mapping};
use unwind_tables::packed::kind;
use unwind_tables::program::{FP, Opcode, SP};
use unwind_tables::rule::{CfaRule, FrameRule, UnwindRule};
use unwind_tables::walk::{self, End, Registers, ReturnProbes, Tables, Unwind, walk};
use unwind_tables::{compile, verify};

/// An object for framehop, mapped at `range` with `bias`.
fn framehop_module(elf: &[u8], range: Range<Avma>, bias: Bias) -> Framehop<Vec<u8>> {
    let file = object::File::parse(elf).expect("an ELF file");
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let start = section.address();
        let data = section.uncompressed_data().ok()?.into_owned();
        Some((start..start + section.size(), data))
    };
    let mut info = ExplicitModuleSectionInfo::default();
    let set = |name| section(name).unzip();
    (info.text_svma, info.text) = set(".text");
    (info.eh_frame_svma, info.eh_frame) = set(".eh_frame");
    (info.eh_frame_hdr_svma, info.eh_frame_hdr) = set(".eh_frame_hdr");
    (info.got_svma, _) = set(".got");
    Framehop::new(
        String::new(),
        range.start.get()..range.end.get(),
        bias.get(),
        info,
    )
}

/// Registers after a step: pc, sp, fp.
type Caller = [u64; 3];

struct Stepper {
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
}

impl Stepper {
    fn new(modules: impl IntoIterator<Item = Framehop<Vec<u8>>>) -> Self {
        let mut unwinder = UnwinderX86_64::new();
        modules.into_iter().for_each(|module| unwinder.add_module(module));
        Self {
            unwinder,
            cache: CacheX86_64::new(),
        }
    }

    /// The caller of the frame at `address`, with these registers; `None` at the end of the stack.
    fn step(
        &mut self,
        address: FrameAddress,
        [pc, sp, fp]: Caller,
        read: impl Fn(u64) -> Option<u64>,
    ) -> Result<Option<Caller>, String> {
        let mut registers = UnwindRegsX86_64::new(pc, sp, fp);
        let mut read = |address| read(address).ok_or(());
        let found = self
            .unwinder
            .unwind_frame(address, &mut registers, &mut self.cache, &mut read)
            .map_err(|error| error.to_string())?;
        Ok(found.map(|pc| [pc, registers.sp(), registers.bp()]))
    }
}

/// Memory in which every word is unlike every other.
fn memory(address: u64) -> u64 {
    let mixed = (address ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 17
}

/// Returns registers of a frame with values that are far apart; the stack pointer is the lowest.
fn registers(pc: u64) -> Registers {
    let mut registers = Registers::new(Avma::new(pc), Avma::new(0x1000_0000), Avma::new(0x1000_8000));
    for (register, number) in registers
        .general
        .iter_mut()
        .zip(1..)
        .filter(|(register, _)| **register == 0)
    {
        *register = 0x1001_0000 + 0x1000 * number;
    }
    registers
}

/// The caller by a step along the frame pointer.
fn by_frame_pointer(frame: Registers) -> Caller {
    let fp = frame.general[usize::from(FP)];
    [memory(fp + 8), fp + 16, memory(fp)]
}

/// Returns a frame's address for framehop: the interrupted instruction, or the return address of the call
/// that it is in.
fn address_of(pc: u64, exact: bool) -> FrameAddress {
    match exact {
        true => FrameAddress::from_instruction_pointer(pc),
        false => FrameAddress::from_return_address(pc).expect("code does not lie at 0"),
    }
}

/// The caller by a step of our walk; `None` at the end of the stack.
fn our_step(
    tables: Tables<'_>,
    frame: Registers,
    exact: bool,
    read: impl Fn(Avma) -> Option<u64>,
) -> Result<Option<Caller>, String> {
    let executing = Registers {
        pc: frame.pc.wrapping_sub(u64::from(!exact)),
        ..frame
    };
    match walk::caller(tables, executing, read) {
        Ok(caller) => Ok(Some([caller.pc.get(), caller.sp.get(), caller.fp.get()])),
        Err(End::Complete) => Ok(None),
        Err(end) => Err(end.name().to_owned()),
    }
}

/// Compares the callers at every call of an object. Returns how many are the same, and how many differ.
///
/// Where they differ, framehop is wrong. It knows the stack and the frame pointer only; where a rule needs
/// more (a CFA in another register, an expression over one), it takes a step along the frame pointer,
/// whatever that holds. Our rule there reads a CFA from memory or is a program, and what it computes is what
/// gimli's evaluation of the CFI gives.
fn compare(elf: &[u8]) -> (u64, u64) {
    let image = compile(elf).expect("an ELF file").image.expect("CFI");
    let view = ElfView::parse(elf).expect("an ELF file");
    let verified = verify::verify(elf, Some(&image)).expect("an ELF file");
    assert_eq!(verified.examples, []);
    let mapping = Mapping::everywhere();
    let tables = Tables {
        architecture: Architecture::X86_64,
        words: image.words(),
        mappings: &[mapping],
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let mut framehop = Stepper::new([framehop_module(elf, mapping.start..mapping.end, mapping.bias)]);
    let (mut same, mut different) = (0, 0);
    for range in &verified.functions {
        let code = calls::code_at(elf, view.segments(), range);
        for return_address in calls::return_addresses(Architecture::X86_64, code, range.start) {
            let frame = registers(return_address.get());
            let ours = our_step(tables, frame, false, |slot| Some(memory(slot.get())));
            let theirs = framehop.step(
                address_of(frame.pc.get(), false),
                [
                    frame.pc.get(),
                    frame.general[usize::from(SP)],
                    frame.general[usize::from(FP)],
                ],
                |slot| Some(memory(slot)),
            );
            if ours == theirs {
                same += 1;
                continue;
            }
            different += 1;
            let rule = image.rule_at(return_address.wrapping_sub(1));
            // A stack of makecontext returns to this code, to which its CFI ascribes a caller.
            if rule == UnwindRule::EndOfStack && ours == Ok(None) {
                continue;
            }
            let text = format!("at {return_address:#x}: {rule:?}: {ours:x?}, framehop {theirs:x?}");
            assert!(is_beyond_framehop(rule), "{text}");
            assert_eq!(theirs, Ok(Some(by_frame_pointer(frame))), "{text}");
        }
    }
    (same, different)
}

/// True if a rule computes a CFA by more than the stack and the frame pointer.
fn is_beyond_framehop(rule: UnwindRule) -> bool {
    matches!(
        rule,
        UnwindRule::Program(_)
            | UnwindRule::Frame(FrameRule {
                cfa: CfaRule::Deref { .. },
                ..
            })
    )
}

/// At every call of compiled code, and at nearly every one of hand-written assembly, both find the same
/// caller.
#[test]
fn callers_at_every_call() {
    for (path, package, calls, most_different) in [
        // `__start_context` calls two functions.
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "libc6", 10_000, 2),
        (
            "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            "libstdc++6",
            10_000,
            0,
        ),
        // Five calls of Python 3.14: a CFA in a slot.
        ("/usr/bin/python3", "python3", 10_000, 5),
        // `_dl_runtime_resolve` and relatives: a CFA in rbx.
        ("/lib64/ld-linux-x86-64.so.2", "libc6", 1000, 20),
    ] {
        let elf = fs::read(stock(path, package)).expect("readable");
        let (same, different) = compare(&elf);
        assert!(same >= calls, "{path}: only {same} calls");
        assert!(different <= most_different, "{path}: {different} differ");
    }
}

/// The rule for a frame, in words.
fn rule_at(published: &Published, code: Avma) -> String {
    let mapping = mapping::find(&published.mappings, code).expect("a frame is mapped");
    let view = ImageView {
        words: &published.words,
        at: mapping.image_at,
    };
    let rule = view.rule_at(mapping.bias.to_svma(code));
    let is_signal_frame =
        rule.kind() == kind::WIDE && view.word(rule.wide_index()) == u32::from(Opcode::Signal as u8);
    match rule.kind() {
        kind::DRAP => "realigned frame".to_owned(),
        kind::WIDE if is_signal_frame => "signal frame".to_owned(),
        _ => format!("{rule:?}"),
    }
}

/// From each frame of a recorded stack, both find the same caller.
///
/// framehop fails, and takes a step along the frame pointer instead, where the CFA has to be read from
/// memory: at the frame that a signal handler returns to, which has interrupted `pthread_kill`, and at the
/// realigned frame. That our walk is right there is what its own test shows: it goes through the functions
/// that the program has called.
#[test]
fn callers_in_recorded_stacks() {
    for flags in BUILDS {
        let Scene {
            program,
            modules,
            mappings,
            published,
            memory,
        } = Scene::of(flags);
        let tables = published.tables();
        let of_framehop = mappings.entries().iter().filter_map(|entry| {
            let MappedCode::Module { module, bias } = entry.code else {
                return None;
            };
            Some(framehop_module(
                modules.get(module)?.bytes(),
                entry.range.clone(),
                bias,
            ))
        });
        let mut framehop = Stepper::new(of_framehop);
        let stack = walk(tables, program.start, |slot| memory.word(slot));
        assert_eq!(stack.end, End::Complete);

        let mut frame = program.start;
        let mut different = Vec::new();
        for (number, recorded) in stack.frames.iter().enumerate() {
            assert_eq!(frame.pc, recorded.pc);
            let [sp, fp] = [SP, FP].map(|register| frame.general[usize::from(register)]);
            let ours = our_step(tables, frame, recorded.exact, |slot| memory.word(slot));
            let address = address_of(frame.pc.get(), recorded.exact);
            let theirs = framehop.step(address, [frame.pc.get(), sp, fp], |slot| {
                memory.word(Avma::new(slot))
            });
            if ours != theirs {
                let code = frame.pc.wrapping_sub(u64::from(!recorded.exact));
                different.push(rule_at(&published, code));
            }
            match ours {
                Ok(Some([pc, sp, fp])) => frame = Registers::new(Avma::new(pc), Avma::new(sp), Avma::new(fp)),
                Ok(None) => assert_eq!(number + 1, stack.frames.len(), "{flags:?}"),
                Err(end) => panic!("{flags:?}: {end}"),
            }
        }
        assert_eq!(different, ["signal frame", "realigned frame"], "{flags:?}");
    }
}
