// Rust functions below C functions that keep frame pointers (`without_tables.c`). They have neither unwind tables
// nor frame pointers, unless the compiler is told to make such tables; the code is the same.
#![no_std]

extern "C" {
    fn malloc(size: usize) -> *mut u8;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[inline(never)]
fn innermost(number: usize) -> usize {
    let block = unsafe { malloc(16 + number) };
    unsafe { block.write_volatile(1) };
    core::hint::black_box(block as usize)
}

#[inline(never)]
fn middle(number: usize) -> usize {
    let words = core::hint::black_box([number; 12]);
    innermost(words[3]) + words[4]
}

#[no_mangle]
pub extern "C" fn leaks_in_rust(number: usize) -> usize {
    middle(number + 1) + number
}
