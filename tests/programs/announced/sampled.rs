//! A program whose own allocator samples and announces blocks.

use std::hint::black_box;
use std::io::{Write, stdin, stdout};
use std::thread;

#[global_allocator]
static ALLOCATOR: memleak_alloc::Sampled = memleak_alloc::Sampled::system();

const LARGE: usize = 4 << 20;

#[inline(never)]
fn kept() {
    for number in 0..10 {
        let block = match number % 3 {
            0 => vec![0_u8; LARGE],
            1 => Vec::<u8>::with_capacity(LARGE),
            _ => {
                let mut grown = Vec::<u8>::with_capacity(1000);
                grown.reserve_exact(LARGE);
                grown
            }
        };
        std::mem::forget(black_box(block));
    }
}

#[inline(never)]
fn freed() {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(|| {
                for _ in 0..100 {
                    let mut block = black_box(Vec::<u8>::with_capacity(LARGE));
                    block.push(1);
                    block.shrink_to_fit();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn rendezvous(line: &str) {
    println!("{line}");
    stdout().flush().unwrap();
    stdin().read_line(&mut String::new()).unwrap();
}

fn main() {
    rendezvous("ready");
    kept();
    freed();
    rendezvous("done");
}
