//! Samples the allocations of a program, and announces each sampled block and its free by USDT probes:
//! OpenTelemetry's contract for memory profiling. While no tracer is attached, an allocation costs one more
//! load and branch.
//!
//! For Rust programs, including static ones, it is an allocator around another:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: memleak_alloc::Sampled = memleak_alloc::Sampled::system();
//! # fn main() {}
//! ```
//!
//! For all other programs it is `libmemleak.so`, which is loaded with `LD_PRELOAD=libmemleak.so`: the module
//! `preload`, which memleak's build script compiles as a library of its own, without the standard library
//! (`--cfg memleak_preload`).
//!
//! A block of `n` bytes is sampled with the probability 1 - e^(-n / distance), as if each byte were chosen
//! with the probability 1 / distance, and stands for `n` bytes divided by that probability: sums of
//! `weighted_bytes` are unbiased.
//!
//! Layers, from below: [`contract`] has the probes, `chance` the random numbers, `blocks` the set of blocks
//! that were announced and not yet freed; `sampler` chooses blocks and announces them. None of them
//! allocates, waits for a lock, or changes `errno`.

#![no_std]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "addresses have 64 bits here, amounts are not negative, and bits of random numbers are cut off"
)]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("memleak-alloc has probes for x86-64 and aarch64");
#[cfg(not(target_os = "linux"))]
compile_error!("memleak-alloc is for Linux");

#[cfg(not(memleak_preload))]
extern crate std;

mod blocks;
mod chance;
pub mod contract;
#[cfg(not(memleak_preload))]
mod global;
#[cfg(memleak_preload)]
mod preload;
mod sampler;

#[cfg(not(memleak_preload))]
pub use global::Sampled;
