// A Rust program: allocates below iterators and closures, through trait objects, and in destructors and hooks
// while a panic unwinds. (With panic=abort there is no panic.)
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};

struct Allocating(usize);

impl Drop for Allocating {
    fn drop(&mut self) {
        std::hint::black_box(vec![1u8; self.0]);
    }
}

trait Shape {
    fn area(&self, depth: usize) -> String;
}

struct Square(Vec<u32>);
struct Round(String);

impl Shape for Square {
    #[inline(never)]
    fn area(&self, depth: usize) -> String {
        if depth > 0 {
            return Round(format!("{depth}")).area(depth - 1) + "s";
        }
        format!("{:?}", self.0)
    }
}

impl Shape for Round {
    #[inline(never)]
    fn area(&self, depth: usize) -> String {
        if depth > 0 {
            return Square(vec![7; depth]).area(depth - 1) + "r";
        }
        self.0.clone()
    }
}

#[inline(never)]
fn iterate(seed: usize) -> usize {
    let words: Vec<String> = (0..30)
        .flat_map(|i| (0..3).map(move |j| format!("word {}", i * j + seed)))
        .filter(|word| word.len() % 2 == 0)
        .collect();
    let mut by_length: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for word in &words {
        by_length.entry(word.len()).or_default().push(word);
    }
    let counts: HashMap<String, usize> = words.iter().map(|word| (word.to_uppercase(), word.len())).collect();
    let mut sorted = words.clone();
    sorted.sort_by_cached_key(|word| word.chars().rev().collect::<String>());
    by_length.len() + counts.len() + sorted.len()
}

#[inline(never)]
fn fall(depth: usize) -> usize {
    let _here = Allocating(40 + depth);
    if depth == 0 {
        panic!("the bottom");
    }
    fall(depth - 1) + 1
}

fn rendezvous(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("standard output");
    std::io::stdin().lock().read_line(&mut String::new()).expect("standard input");
}

fn main() {
    let unwinds = cfg!(panic = "unwind");
    std::panic::set_hook(Box::new(|_| drop(std::hint::black_box(Box::new([1u8; 99])))));
    rendezvous("ready");
    let mut sum = 0;
    for seed in 0..10 {
        sum += iterate(seed);
        let shapes: [Box<dyn Shape>; 2] = [Box::new(Square(vec![1, 2])), Box::new(Round("r".to_owned()))];
        sum += shapes.iter().map(|shape| shape.area(seed).len()).sum::<usize>();
        if unwinds {
            sum += std::panic::catch_unwind(|| fall(seed)).unwrap_or(1);
        }
    }
    let threads: Vec<_> = (0..2).map(|seed| std::thread::spawn(move || iterate(seed))).collect();
    sum += threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum::<usize>();
    std::hint::black_box(sum);
    rendezvous("done");
}
