//! Samples what a program allocates, and announces each sampled block, and its free, by USDT probes: OpenTelemetry's contract for
//! memory profiling. While nobody is attached, an allocation costs one load and one branch more.
//!
//! For a Rust program, the static ones too, it is an allocator around another:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: memleak_alloc::Sampled = memleak_alloc::Sampled::system();
//! # fn main() {}
//! ```
//!
//! For all others it is `libmemleak.so`, which is the module `preload`, compiled by memleak's build script for itself, without
//! the standard library (`--cfg memleak_preload`): `LD_PRELOAD=libmemleak.so`.
//!
//! A block of `n` bytes is sampled with the probability 1 - e^(-n / distance), as if each byte were chosen with the probability
//! 1 / distance, and stands for `n` divided by that: sums of `weighted_bytes` are unbiased.
//!
//! Layers, from below: [`contract`] has the probes, `chance` the random numbers, `blocks` the set of blocks that were announced
//! and not yet freed, `sampler` decides. None of them allocates, waits for a lock, or changes `errno`.

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
