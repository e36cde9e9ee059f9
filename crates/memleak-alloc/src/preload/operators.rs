//! C++'s `operator new` and `operator delete`. Those of libstdc++ and libc++ call `malloc` and `free`, and
//! are only passed through; those of an allocator that brings its own (gperftools' tcmalloc) are sampled
//! here.
//!
//! `operator new` can throw through its caller's frames, but not through frames of this library's Rust code.
//! So these functions are assembly, which jumps to the next operator, or calls it with CFI for its own frame.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};

use super::abort::abort;
use super::elf::{self, Name};
use super::entries::allocated;
use super::next;
use crate::contract::SEMAPHORES;
use crate::sampler;

/// Addresses of the next operators, by number: those of `new`, then those of `delete`.
static NEXT: [AtomicPtr<()>; NEW + DELETE] = initial();
/// 1 for an operator of the object that has the next `malloc`, unless it calls `malloc` by its symbol.
static SAMPLED: [AtomicU8; NEW + DELETE] = [const { AtomicU8::new(0) }; NEW + DELETE];

/// Finds the next operators when the first of them is called: the object that has them can be loaded late.
extern "C" fn find(wanted: usize) {
    next::resolve();
    let allocator = elf::next(const { Name::new("malloc") });
    for (number, name) in NAMES.iter().enumerate() {
        let Some(found) = elf::next(*name) else {
            // The caller of an operator is linked with an object that has it.
            if number == wanted {
                abort();
            }
            continue;
        };
        let is_sampled = allocator.is_some_and(|allocator| allocator.object == found.object);
        SAMPLED[number].store(is_sampled.into(), Relaxed);
        NEXT[number].store(found.function.cast_mut(), Relaxed);
    }
    pass_through_built_on_others();
}

/// Finds the operators of the allocator's object that call its other functions by symbol all the same, as
/// jemalloc's aligned ones do, and passes them through. For this it calls operators that do not throw.
fn pass_through_built_on_others() {
    const SIZE: usize = 64;
    const ALIGNMENT: usize = 64;
    let nothrow = 0_u8;
    let nothrow = core::ptr::from_ref(&nothrow).addr();
    // For operators without and with an alignment: their numbers, the operator that is called, its arguments
    // after the size, and the operator `delete` for the block.
    let groups = [(0..4, 2, [nothrow, 0], 8), (4..8, 6, [ALIGNMENT, nothrow], 14)];
    for (operators, called, [second, third], delete) in groups {
        if SAMPLED[called].load(Relaxed) == 0 {
            continue;
        }
        let function = NEXT[called].load(Relaxed);
        // SAFETY: `operator new` that does not throw, with arguments in registers; the one without an
        // alignment ignores the last.
        let new: extern "C" fn(usize, usize, usize) -> *mut u8 = unsafe { core::mem::transmute(function) };
        let mut block = core::ptr::null_mut();
        if next::calls_from_within(|| block = new(SIZE, second, third)) {
            operators.for_each(|number| SAMPLED[number].store(0, Relaxed));
        }
        let function = NEXT[delete].load(Relaxed);
        // SAFETY: `operator delete`, or what stands for it until it is found.
        let delete: extern "C" fn(*mut u8, usize) = unsafe { core::mem::transmute(function) };
        delete(block, ALIGNMENT);
    }
}

/// Handles an allocation of `size` bytes that contains a chosen byte. It is not yet subtracted from `left`:
/// that was undone before the call of the next operator, which can throw.
extern "C" fn chosen(block: *mut u8, size: usize) -> *mut u8 {
    if !block.is_null() && super::thread::is_due(size) {
        allocated(block, size);
    }
    block
}

/// Defines the `operator new` of this name. Its arguments, of which the first is the size, are left in their
/// registers.
macro_rules! new_operator {
    ($name:ident, $number:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "a mangled name")]
        extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                "cmp qword ptr [rip + {semaphores}], 0",
                "jne 3f",
                concat!("2: jmp qword ptr [rip + {next} + 8 * ", $number, "]"),
                concat!("3: cmp byte ptr [rip + {sampled} + ", $number, "], 0"),
                "je 2b",
                "mov rax, qword ptr [rip + memleak_thread@GOTTPOFF]",
                "sub qword ptr fs:[rax], rdi",
                "jnc 2b",
                "add qword ptr fs:[rax], rdi",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                concat!("call qword ptr [rip + {next} + 8 * ", $number, "]"),
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "mov rdi, rax",
                "jmp {chosen}",
                ".cfi_endproc",
                semaphores = sym SEMAPHORES, next = sym NEXT, sampled = sym SAMPLED, chosen = sym chosen,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "adrp x9, {semaphores}",
                "ldr x9, [x9, :lo12:{semaphores}]",
                "cbnz x9, 3f",
                "2: adrp x9, {next}",
                "add x9, x9, :lo12:{next}",
                concat!("ldr x9, [x9, #8 * ", $number, "]"),
                "br x9",
                "3: adrp x9, {sampled}",
                "add x9, x9, :lo12:{sampled}",
                concat!("ldrb w9, [x9, #", $number, "]"),
                "cbz w9, 2b",
                "mrs x9, tpidr_el0",
                "adrp x10, :gottprel:memleak_thread",
                "ldr x10, [x10, :gottprel_lo12:memleak_thread]",
                "ldr x11, [x9, x10]",
                "subs x11, x11, x0",
                "b.lo 4f",
                "str x11, [x9, x10]",
                "b 2b",
                "4: stp x29, x30, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "mov x29, sp",
                "str x0, [sp, #16]",
                "adrp x9, {next}",
                "add x9, x9, :lo12:{next}",
                concat!("ldr x9, [x9, #8 * ", $number, "]"),
                "blr x9",
                "ldr x1, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "b {chosen}",
                ".cfi_endproc",
                semaphores = sym SEMAPHORES, next = sym NEXT, sampled = sym SAMPLED, chosen = sym chosen,
            )
        }
    };
}

/// Defines the `operator delete` of this name. Arguments after the block are passed on.
macro_rules! delete_operator {
    ($name:ident, $number:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "a mangled name")]
        extern "C" fn $name(block: *mut u8, second: usize, third: usize) {
            if sampler::must_tell_free(block.addr()) && SAMPLED[$number].load(Relaxed) != 0 {
                sampler::freed(block.addr());
            }
            let next = NEXT[$number].load(Relaxed);
            // SAFETY: the operator of that name, or the function that stands for it until it is found.
            let next: extern "C" fn(*mut u8, usize, usize) = unsafe { core::mem::transmute(next) };
            next(block, second, third);
        }
    };
}

/// Defines the operators, and for each an initial function in the place of the next operator: it finds that
/// operator, and jumps there with its own arguments.
macro_rules! operators {
    (new { $($new:ident = $new_number:literal,)* } delete { $($delete:ident = $delete_number:literal,)* }) => {
        $(new_operator!($new, $new_number);)*
        $(delete_operator!($delete, $delete_number);)*

        const NEW: usize = [$($new_number),*].len();
        const DELETE: usize = [$($delete_number),*].len();
        const NAMES: [Name; NEW + DELETE] = [$(Name::new(stringify!($new)),)* $(Name::new(stringify!($delete)),)*];

        const fn initial() -> [AtomicPtr<()>; NEW + DELETE] {
            [
                $(AtomicPtr::new(first::$new as *const () as *mut ()),)*
                $(AtomicPtr::new(first::$delete as *const () as *mut ()),)*
            ]
        }

        #[allow(non_snake_case, reason = "mangled names")]
        mod first {
            use super::*;
            $(first_call!($new, $new_number);)*
            $(first_call!($delete, $delete_number);)*
        }
    };
}

macro_rules! first_call {
    ($name:ident, $number:literal) => {
        #[unsafe(naked)]
        pub(super) extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                "push rdi",
                "push rsi",
                "push rdx",
                ".cfi_adjust_cfa_offset 24",
                concat!("mov edi, ", $number),
                "call {find}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -24",
                concat!("jmp qword ptr [rip + {next} + 8 * ", $number, "]"),
                ".cfi_endproc",
                find = sym find, next = sym NEXT,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                concat!("mov x0, #", $number),
                "bl {find}",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "adrp x9, {next}",
                "add x9, x9, :lo12:{next}",
                concat!("ldr x9, [x9, #8 * ", $number, "]"),
                "br x9",
                ".cfi_endproc",
                find = sym find, next = sym NEXT,
            )
        }
    };
}

operators! {
    new {
    _Znwm = 0,
    _Znam = 1,
    _ZnwmRKSt9nothrow_t = 2,
    _ZnamRKSt9nothrow_t = 3,
    _ZnwmSt11align_val_t = 4,
    _ZnamSt11align_val_t = 5,
    _ZnwmSt11align_val_tRKSt9nothrow_t = 6,
    _ZnamSt11align_val_tRKSt9nothrow_t = 7,
    }
    delete {
    _ZdlPv = 8,
    _ZdaPv = 9,
    _ZdlPvm = 10,
    _ZdaPvm = 11,
    _ZdlPvRKSt9nothrow_t = 12,
    _ZdaPvRKSt9nothrow_t = 13,
    _ZdlPvSt11align_val_t = 14,
    _ZdaPvSt11align_val_t = 15,
    _ZdlPvmSt11align_val_t = 16,
    _ZdaPvmSt11align_val_t = 17,
    _ZdlPvSt11align_val_tRKSt9nothrow_t = 18,
    _ZdaPvSt11align_val_tRKSt9nothrow_t = 19,
    }
}
