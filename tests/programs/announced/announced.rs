//! Announces blocks of its allocator, written from the contract's text: its own notes, no semaphores, other operands.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::io::{Write, stdin, stdout};

/// The note of a probe at label 990.
macro_rules! note {
    ($name:literal, $arguments:literal) => {
        concat!(
            "990: nop\n",
            ".pushsection .note.stapsdt,\"\",\"note\"\n",
            ".balign 4\n",
            ".4byte 992f-991f, 994f-993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: .8byte 990b, 0, 0\n",
            ".asciz \"otel_memory\"\n",
            ".asciz \"", $name, "\"\n",
            ".asciz \"", $arguments, "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
        )
    };
}

/// Allocates blocks that stand for 16 each.
#[inline(never)]
fn allocate(size: usize) -> *mut u8 {
    let block = unsafe { alloc(Layout::from_size_align_unchecked(size, 8)) };
    let frame = [0_u64, (size * 16) as u64];
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            note!("alloc", "8@{block} -4@{size:e} 8@8({frame})"),
            block = in(reg) block, size = in(reg) size, frame = in(reg) black_box(&frame), options(att_syntax, nostack)
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            note!("alloc", "8@{block} -4@{size:w} 8@[{frame}, 8]"),
            block = in(reg) block, size = in(reg) size, frame = in(reg) black_box(&frame), options(nostack)
        );
    }
    block
}

#[inline(never)]
fn release(block: *mut u8, size: usize) {
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(note!("free", "8@{block}"), block = in(reg) block, options(att_syntax, nostack));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(note!("free", "8@{block}"), block = in(reg) block, options(nostack));
        dealloc(block, Layout::from_size_align_unchecked(size, 8));
    }
}

#[inline(never)]
fn leak() {
    for _ in 0..100 {
        black_box(allocate(64));
    }
}

#[inline(never)]
fn churn() {
    for _ in 0..100 {
        release(black_box(allocate(32)), 32);
    }
}

fn rendezvous(line: &str) {
    println!("{line}");
    stdout().flush().unwrap();
    stdin().read_line(&mut String::new()).unwrap();
}

fn main() {
    rendezvous("ready");
    leak();
    churn();
    rendezvous("done");
}
