//! Tools of the integration tests: files of this machine, and objects built on the spot.

pub(crate) mod build;
pub(crate) mod elf;

use std::path::PathBuf;

/// The bytes of the first of `paths` that exists. Panics if there is none, since a test without a file would
/// check nothing.
pub(crate) fn read_first(paths: &[&str]) -> Vec<u8> {
    let found = paths.iter().map(PathBuf::from).find(|path| path.exists());
    let path = found.unwrap_or_else(|| panic!("this test needs one of {paths:?}; install it"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The C library of this machine.
pub(crate) fn libc() -> Vec<u8> {
    read_first(&[
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/usr/lib/libc.so.6",
    ])
}

/// The vDSO of this process, copied out of memory.
pub(crate) fn vdso() -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps of this process");
    let line = maps
        .lines()
        .find(|line| line.ends_with("[vdso]"))
        .expect("a vDSO is mapped");
    let (start, end) = line
        .split(' ')
        .next()
        .and_then(|range| range.split_once('-'))
        .expect("a range");
    let address = |text| u64::from_str_radix(text, 16).expect("an address");
    let (start, end) = (address(start), address(end));
    let mut bytes = vec![0; usize::try_from(end - start).expect("a few pages")];
    let memory = std::fs::File::open("/proc/self/mem").expect("memory of this process");
    memory
        .read_exact_at(&mut bytes, start)
        .expect("the vDSO is readable");
    bytes
}

/// The file without section headers, as `strip --strip-section-headers` leaves it.
pub(crate) fn without_section_headers(mut elf: Vec<u8>) -> Vec<u8> {
    elf[40..48].fill(0); // e_shoff
    elf[60..64].fill(0); // e_shnum, e_shstrndx
    elf
}
