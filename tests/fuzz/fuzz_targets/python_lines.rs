#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memleak::fuzzing::check("python_lines", bytes));
