// Rust's allocation functions, by the system's allocator or by one that the program defines. Each function is one site.
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::hint::black_box;
use std::io::{Read, Write};

#[cfg(own)]
mod own {
    use std::alloc::{GlobalAlloc, Layout};
    use std::sync::atomic::{AtomicUsize, Ordering};

    pub struct Bump;

    static mut MEMORY: [u8; 1 << 20] = [0; 1 << 20];
    static USED: AtomicUsize = AtomicUsize::new(0);

    unsafe impl GlobalAlloc for Bump {
        #[inline(never)]
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let at = USED.fetch_add(layout.size() + layout.align() + 15 & !15, Ordering::Relaxed);
            unsafe { (&raw mut MEMORY).cast::<u8>().add(at + 15 & !15) }
        }

        #[inline(never)]
        unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
            unsafe { block.write_volatile(0) };
        }
    }

    #[global_allocator]
    static BUMP: Bump = Bump;
}

const fn layout(size: usize) -> Layout {
    match Layout::from_size_align(size, 8) {
        Ok(layout) => layout,
        Err(_) => panic!(),
    }
}

#[inline(never)]
fn alloc_kept() {
    black_box(unsafe { alloc(black_box(layout(1001))) });
}

#[inline(never)]
fn alloc_freed() {
    unsafe { dealloc(black_box(alloc(black_box(layout(1002)))), layout(1002)) };
}

#[inline(never)]
fn zeroed_kept() {
    black_box(unsafe { alloc_zeroed(black_box(layout(1003))) });
}

#[inline(never)]
fn realloc_kept() {
    unsafe { black_box(realloc(black_box(alloc(black_box(layout(100)))), layout(100), 100_000)) };
}

fn rendezvous(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {}
}

fn main() {
    rendezvous("warm");
    rendezvous("ready");
    alloc_kept();
    alloc_freed();
    zeroed_kept();
    realloc_kept();
    rendezvous("done");
}
