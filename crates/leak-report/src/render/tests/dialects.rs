//! Reports in the dialects of bcc's two memleaks, byte for byte.

use super::*;
use crate::model::{
    Amount, BlockList, Compared, KernelFacts, KindTotals, ListedBlock, Location, Losses, Sampling, Stack,
    Symbolized, Weight,
};
use crate::render::{Stage, StderrLine};
use crate::samples;
use std::time::Duration;
use unwind_tables::addr::Avma;
use unwind_tables::addr::Svma;
use unwind_tables::walk::End;
use unwind_tables::walk::FoundBy;

fn block(address: u64, size: u64) -> ListedBlock {
    ListedBlock {
        address: Avma::new(address),
        size,
        age: Duration::from_secs(2),
        weight: Weight::ONE,
        class: None,
    }
}

fn blocks(listed: &[(u64, u64)], left_out: u64) -> Option<BlockList> {
    Some(BlockList {
        listed: listed
            .iter()
            .map(|&(address, size)| block(address, size))
            .collect(),
        left_out,
    })
}

fn amount(bytes: u64, blocks: u64) -> Amount {
    Amount { bytes, blocks }
}

/// The report with ages, as without `-C`.
fn detailed(report: Report) -> Report {
    let compared = Compared {
        older: Some(Duration::from_millis(500)),
        ..report.compared
    };
    Report { compared, ..report }
}

/// A report of a stack with symbols, one through a module without symbols and through code outside modules,
/// with and without a name, and one that was not stored.
fn user() -> Report {
    let mut report = full();
    let jitted = frame(
        Location {
            pc: Avma::new(0x7e00_0000_2000),
            place: None,
        },
        FoundBy::Fp,
        named("LazyCompile:~leak app.js:3", 0x20),
    );
    samples::change_frames(&mut report, 1, |frames| frames.push(jitted));
    report
        .stacks
        .push(stack(amount(30, 3), End::StackTableFull, None, Vec::new()));
    report
}

/// Stacks of the kernel: in the kernel itself, in a module, and in code without a name.
fn kernel() -> Report {
    let kernel = module("[kernel]", None);
    let nf_tables = module("[nf_tables]", None);
    let at = |module: &ModuleId, pc: u64| Location {
        pc: Avma::new(pc),
        place: Some(Place {
            module: *module,
            svma: Svma::new(pc & 0xffff),
        }),
    };
    let unknown = Location {
        pc: Avma::new(0xffff_ffff_c0aa_0000),
        place: None,
    };
    let frames = vec![
        frame(
            at(&nf_tables, 0xffff_ffff_c012_3456),
            FoundBy::Kernel,
            named("nft_set_elem_init", 0x56),
        ),
        frame(unknown, FoundBy::Kernel, Symbolized::default()),
        frame(
            at(&kernel, 0xffff_ffff_8120_0010),
            FoundBy::Kernel,
            named("do_syscall_64", 0x10),
        ),
    ];
    let kmalloc = Stack {
        pid: 0,
        instance: 0,
        allocator: samples::allocator("kmalloc"),
        ..stack(amount(4096, 1), End::Complete, None, frames)
    };
    let pages = Stack {
        allocator: samples::allocator("slab_pages"),
        ..kmalloc.clone()
    };
    let kinds = vec![KindTotals {
        allocator: "slab_pages".into(),
        outstanding: amount(4096, 1),
        allocated: amount(4096, 1),
        holds_others: true,
    }];
    let facts = KernelFacts {
        release: "6.18".to_owned(),
        kinds,
    };
    Report {
        kernel: Some(facts),
        ..report(vec![kmalloc, pages])
    }
}

/// Entries are indented, largest last; each frame has its address, function and module name; unknowns have
/// bcc's wording. Inlined functions and source lines are omitted.
#[test]
fn bcc_of_the_block_table() {
    let expected = concat!(
        "[09:05:07] Top 10 stacks with outstanding allocations:\n",
        "\t30 bytes in 3 allocations from stack\n",
        "\t\tstack information lost\n",
        "\t40 bytes in 1 allocations from stack\n",
        "\t\t0x00007f0000001234\t[unknown] [libplugin.so]\n",
        "\t\t0x00007e0000001000\t[unknown]\n",
        "\t\t0x00007f0000001200\tevil\\u{1b}[2J\\n+0x10 [leaker]\n",
        "\t\t0x00007e0000002000\tLazyCompile:~leak app.js:3+0x20 [perf-4242.map]\n",
        "\t480 bytes in 12 allocations from stack\n",
        "\t\t0x00007f00000ae98c\toperator new(unsigned long)+0x1c [libstdc++.so.6.0.30]\n",
        "\t\t0x00007f0000001131\tmain+0x31 [leaker]\n",
    );
    assert_eq!(rendered(&detailed(user()), Format::Bcc), expected);
}

/// From totals alone, frames have no addresses.
#[test]
fn bcc_of_totals() {
    let expected = concat!(
        "[09:05:07] Top 2 stacks with outstanding allocations:\n",
        "\t40 bytes in 1 allocations from stack\n",
        "\t\t[unknown] [libplugin.so]\n",
        "\t\t[unknown]\n",
        "\t\tevil\\u{1b}[2J\\n+0x10 [leaker]\n",
        "\t\tLazyCompile:~leak app.js:3+0x20 [perf-4242.map]\n",
        "\t480 bytes in 12 allocations from stack\n",
        "\t\toperator new(unsigned long)+0x1c [libstdc++.so.6.0.30]\n",
        "\t\tmain+0x31 [leaker]\n",
    );
    assert_eq!(rendered(&Report { top: 2, ..user() }, Format::Bcc), expected);
}

/// Blocks of all stacks precede the first entry, smallest first.
#[test]
fn bcc_of_blocks() {
    let mut report = detailed(Report { top: 1, ..full() });
    report.stacks[0].blocks = blocks(&[(0x55d0_0000_2000, 400), (0x55d0_0000_1000, 80)], 0);
    report.stacks[1].blocks = blocks(&[(0x55d0_0000_3000, 40)], 0);
    let expected = concat!(
        "[09:05:07] Top 1 stacks with outstanding allocations:\n",
        "\taddr = 55d000003000 size = 40\n",
        "\taddr = 55d000001000 size = 80\n",
        "\taddr = 55d000002000 size = 400\n",
        "\t480 bytes in 12 allocations from stack\n",
        "\t\t0x00007f00000ae98c\toperator new(unsigned long)+0x1c [libstdc++.so.6.0.30]\n",
        "\t\t0x00007f0000001131\tmain+0x31 [leaker]\n",
    );
    assert_eq!(rendered(&report, Format::Bcc), expected);
}

/// Without stacks there is only a header, followed by an empty line if it is from totals.
#[test]
fn bcc_of_nothing() {
    let header = "[09:05:07] Top 10 stacks with outstanding allocations:\n";
    assert_eq!(rendered(&detailed(report(Vec::new())), Format::Bcc), header);
    assert_eq!(rendered(&report(Vec::new()), Format::Bcc), format!("{header}\n"));
}

/// Functions of the kernel are in module "kernel"; pages that contain other blocks are omitted.
#[test]
fn bcc_of_the_kernel() {
    let expected = concat!(
        "[09:05:07] Top 10 stacks with outstanding allocations:\n",
        "\t4096 bytes in 1 allocations from stack\n",
        "\t\t0xffffffffc0123456\tnft_set_elem_init+0x56 [nf_tables]\n",
        "\t\t0xffffffffc0aa0000\t[unknown]\n",
        "\t\t0xffffffff81200010\tdo_syscall_64+0x10 [kernel]\n",
    );
    assert_eq!(rendered(&detailed(kernel()), Format::Bcc), expected);
}

/// The header counts the stacks shown and pads no digits; entries are not indented, largest first; frames
/// have numbers and full paths.
#[test]
fn libbpf_of_the_block_table() {
    let expected = concat!(
        "[9:5:7] Top 2 stacks with outstanding allocations:\n",
        "480 bytes in 12 allocations from stack\n",
        "\t0 [<00007f00000ae98c>] operator new(unsigned long)+0x1c [/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30]\n",
        "\t1 [<00007f0000001131>] main+0x31 [/opt/leaker]\n",
        "40 bytes in 1 allocations from stack\n",
        "\t0 [<00007f0000001234>] [/opt/libplugin.so]\n",
        "\t1 [<00007e0000001000>] <null sym>\n",
        "\t2 [<00007f0000001200>] evil\\u{1b}[2J\\n+0x10 [/opt/leaker]\n",
        "\t3 [<00007e0000002000>] LazyCompile:~leak app.js:3+0x20\n",
    );
    // The output is the same from the block table and from totals.
    assert_eq!(rendered(&detailed(user()), Format::Libbpf), expected);
    assert_eq!(rendered(&user(), Format::Libbpf), expected);
}

/// Blocks follow their entry.
#[test]
fn libbpf_of_blocks() {
    let mut report = detailed(Report { top: 1, ..full() });
    report.stacks[0].blocks = blocks(&[(0x55d0_0000_2000, 400), (0x55d0_0000_1000, 80)], 0);
    report.stacks[1].blocks = blocks(&[(0x55d0_0000_3000, 40)], 0);
    let expected = concat!(
        "[9:5:7] Top 1 stacks with outstanding allocations:\n",
        "480 bytes in 12 allocations from stack\n",
        "\taddr = 0x55d000002000 size = 400\n",
        "\taddr = 0x55d000001000 size = 80\n",
        "\t0 [<00007f00000ae98c>] operator new(unsigned long)+0x1c [/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30]\n",
        "\t1 [<00007f0000001131>] main+0x31 [/opt/leaker]\n",
    );
    assert_eq!(rendered(&report, Format::Libbpf), expected);
}

/// Without stacks there is only a header with the number 0.
#[test]
fn libbpf_of_nothing() {
    let header = "[9:5:7] Top 0 stacks with outstanding allocations:\n";
    assert_eq!(rendered(&report(Vec::new()), Format::Libbpf), header);
    assert_eq!(rendered(&detailed(report(Vec::new())), Format::Libbpf), header);
}

/// Functions of the kernel have no module.
#[test]
fn libbpf_of_the_kernel() {
    let expected = concat!(
        "[9:5:7] Top 1 stacks with outstanding allocations:\n",
        "4096 bytes in 1 allocations from stack\n",
        "\t0 [<ffffffffc0123456>] nft_set_elem_init+0x56\n",
        "\t1 [<ffffffffc0aa0000>] <null sym>\n",
        "\t2 [<ffffffff81200010>] do_syscall_64+0x10\n",
    );
    assert_eq!(rendered(&detailed(kernel()), Format::Libbpf), expected);
}

/// Facts that a dialect cannot express go to standard error: libbpf's own warning, and one line of memleak's.
/// Other formats express all.
#[test]
fn omitted_facts_go_to_stderr() {
    let mut report = user();
    report.sampling = Sampling::Calls(10);
    report.targets.push(report.targets[0].clone());
    report.stacks[0].blocks = blocks(&[], 5);
    let omitted = |format: &str| {
        StderrLine::Warning(format!(
            "--format {format} cannot express: 2 of 3 stacks not complete (1 no_cfi, 1 stack_table_full); 9 \
             blocks, 1.5 MiB (1600000 B), not recorded; amounts are estimates, not sums of what was sampled; \
             the stacks of 2 programs are listed together; 5 blocks not listed"
        ))
    };
    let missing = StderrLine::Verbatim(
        "WARNING: 3 stack traces could not be displayed due to memory shortage, including 0 caused by hash collisions. \
         Consider increasing --stack-storage-size."
            .to_owned(),
    );
    assert_eq!(Format::Bcc.stderr_lines(&report), [omitted("bcc")]);
    assert_eq!(Format::Libbpf.stderr_lines(&report), [missing, omitted("libbpf")]);
    for format in [Format::Text, Format::Json] {
        assert_eq!(format.stderr_lines(&report), []);
    }
}

/// A report whose facts the dialect can all express has no additional lines.
#[test]
fn no_stderr_lines_without_omitted_facts() {
    let mut report = full();
    report.stacks.remove(1);
    report.losses = Losses::default();
    for format in [Format::Bcc, Format::Libbpf] {
        assert_eq!(format.stderr_lines(&report), []);
    }
}

/// A stack that was cut by the user's depth limit does not count as incomplete.
#[test]
fn cut_stacks_are_not_incomplete() {
    let mut report = Report {
        depth: Some(3),
        ..full()
    };
    report.losses = Losses::default();
    report.stacks[1].end = End::DepthLimit;
    assert_eq!(Format::Bcc.stderr_lines(&report), []);
    report.depth = Some(4);
    assert_eq!(
        Format::Bcc.stderr_lines(&report).len(),
        1,
        "a walk that was too long is not"
    );
}

/// Lines between reports are those of the original tools.
#[test]
fn lines_between_reports() {
    let started = Stage::Started {
        command: "leaker malloc 30000",
        pid: 17,
    };
    let (attached, kernel) = (Stage::Attached { pids: &[17] }, Stage::Attached { pids: &[] });
    let stages = [started, attached, Stage::Released, Stage::Ended, kernel];
    let lines = |format: Format| stages.map(|stage| format.stage_lines(&stage).join("|"));
    assert_eq!(
        lines(Format::Bcc),
        [
            "Executing 'leaker malloc 30000' and tracing the resulting process.",
            "Attaching to pid 17, Ctrl+C to quit.",
            "",
            "",
            "Attaching to kernel allocators, Ctrl+C to quit.",
        ]
    );
    assert_eq!(
        lines(Format::Libbpf),
        [
            "child created with pid: 17",
            "Attaching to pid 17, Ctrl+C to quit.",
            "received go event. executing child command",
            "reaped child process",
            "Attaching to kernel allocators, Ctrl+C to quit.",
        ]
    );
    assert_eq!(lines(Format::Text).concat() + &lines(Format::Json).concat(), "");
}
