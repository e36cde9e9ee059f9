//! The library with which a program is started to sample its own allocations (`--preload`): `libmemleak.so`,
//! which is embedded in memleak.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memchr::memmem;
use sha2::{Digest, Sha256};

use super::probes::AllocatorProbes;
use crate::allocator::{is_sampler, is_sampler_file};
use crate::process::{Mappings, Module, Modules};

/// The library. `build.rs` compiles it from `memleak-alloc`.
pub(super) static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemleak.so"));

/// File name of the library.
const FILE_NAME: &str = "libmemleak.so";

/// Environment variable that makes the loader load it.
const VARIABLE: &str = "LD_PRELOAD";

/// Returns the environment variable that makes a program load the library before all others, followed by
/// those already in the variable.
///
/// # Errors
///
/// The library cannot be stored where the program finds it.
pub(super) fn environment() -> anyhow::Result<(&'static str, OsString)> {
    let mut value = library()?.into_os_string();
    if let Some(others) = std::env::var_os(VARIABLE).filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok((VARIABLE, value))
}

/// Path of the library: the installed one if it is of this version, else a copy, which is written if it is
/// missing. The copy is not removed, as children of the program load it too.
fn library() -> anyhow::Result<PathBuf> {
    let is_this = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes == LIBRARY);
    let exe = std::env::current_exe().context("cannot find memleak's own file")?;
    let installed = exe
        .parent()
        .and_then(Path::parent)
        .map(|prefix| prefix.join("lib/memleak"));
    let installed = installed
        .map(|directory| directory.join(FILE_NAME))
        .filter(is_this);
    if let Some(installed) = installed {
        return Ok(installed);
    }
    let directory = copies_directory().context("cannot store libmemleak.so: there is no home directory")?;
    let digest = Sha256::digest(LIBRARY);
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = directory.join(format!("libmemleak-{digest}.so"));
    if !is_this(&path) {
        write(&directory, &path)
            .with_context(|| format!("cannot store libmemleak.so as {}", path.display()))?;
    }
    match path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b" :".contains(byte))
    {
        true => bail!(
            "cannot have libmemleak.so loaded from {}: its path must have neither blanks nor colons",
            path.display()
        ),
        false => Ok(path),
    }
}

/// Writes the library to a file: a new one, or one that has a library of another version.
///
/// # Errors
///
/// The file has something else, or cannot be written.
pub fn write_library(path: &Path) -> anyhow::Result<()> {
    let is_other = match fs::metadata(path) {
        // Reading another kind of file could block forever.
        Ok(metadata) if !metadata.is_file() => true,
        Ok(_) => !fs::read(path).is_ok_and(|bytes| is_sampler_file(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
    };
    if is_other {
        bail!(
            "{} is there already, and is no libmemleak.so: remove it, or use another name",
            path.display()
        );
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    write(directory.unwrap_or(Path::new(".")), path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// A directory that other users cannot write to; `None` without a home directory.
fn copies_directory() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/memleak"));
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|path| path.is_absolute()).or_else(home)?;
    Some(cache.join("memleak"))
}

/// Writes the library into `directory`, which is created if it is missing. All users can read the file, as
/// the program may run as another one. It appears at once as a whole, as other programs may be starting.
fn write(directory: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(LIBRARY)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

/// Checks that a program, which was started with the library and has not yet run, has it and calls it.
///
/// # Errors
///
/// The program does not have it or does not call it; the error says why, and what to do instead.
pub(super) fn check(
    name: &str,
    mappings: &Mappings,
    modules: &Modules,
    probes: &AllocatorProbes,
) -> anyhow::Result<()> {
    let mapped: Vec<_> = mappings
        .module_ids()
        .filter_map(|module| modules.get(module))
        .collect();
    let program = mapped.first().filter(|module| !is_sampler(module));
    if let Some(sanitizer) = program.and_then(|program| sanitizer(&mapped, program)) {
        bail!(
            "cannot preload libmemleak.so into {name}: it is built with {sanitizer}, which has its own \
             allocator; leave out --preload"
        );
    }
    if !mapped.iter().any(|module| is_sampler(module)) {
        bail!(
            "libmemleak.so was not loaded into {name}: static programs, and programs whose file gives \
             privileges (setuid, setgid, capabilities), ignore LD_PRELOAD; leave out --preload, or build a \
             Rust program with memleak-alloc"
        );
    }
    if probes.is_passed_by(mappings.module_ids().next(), mappings.module_ids()) {
        bail!(
            "cannot preload libmemleak.so into {name}: its own file contains the allocator that it calls; \
             leave out --preload"
        );
    }
    Ok(())
}

/// Name of the sanitizer that a program is built with.
fn sanitizer(mapped: &[&Module], program: &Module) -> Option<&'static str> {
    /// Function that each calls first, name of its library if it is not part of the program, and its name.
    const SANITIZERS: [(&[u8], &str, &str); 5] = [
        (b"__asan_init\0", "libasan.so", "AddressSanitizer"),
        (b"__tsan_init\0", "libtsan.so", "ThreadSanitizer"),
        (b"__msan_init\0", "libmsan.so", "MemorySanitizer"),
        (b"__hwasan_init\0", "libhwasan.so", "HWAddressSanitizer"),
        (b"__lsan_init\0", "liblsan.so", "LeakSanitizer"),
    ];
    let has_library = |wanted: &str| {
        let names = mapped.iter().filter_map(|module| module.path.file_name());
        names
            .into_iter()
            .any(|name| name.as_encoded_bytes().starts_with(wanted.as_bytes()))
    };
    let found = SANITIZERS.into_iter().find(|(function, library, _)| {
        has_library(library) || memmem::find(program.bytes(), function).is_some()
    });
    found.map(|(_, _, name)| name)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use object::{Object as _, ObjectSymbol as _};
    use unwind_tables::elf::ElfView;

    use super::*;
    use crate::allocator::{NOP10, usdt};

    /// The kernel can replace the trap of a probe by a call: the long `nop` is behind the one that the note
    /// names, and within one page.
    #[test]
    fn probes_have_a_long_nop() {
        let elf = ElfView::parse(LIBRARY).expect("an ELF file");
        let probes = usdt::probes(LIBRARY, &elf);
        assert_eq!(probes.len(), 4);
        for probe in probes {
            let offset = elf.offset_of(probe.svma).expect("in the file").get();
            let code = &LIBRARY[usize::try_from(offset).expect("below 4 GiB")..];
            assert!(code[0] == 0x90 && code[1..].starts_with(&NOP10), "{probe:?}");
            assert_eq!(probe.svma.get() % 16, 0, "{probe:?}");
        }
    }

    /// The instructions of each call are in one cache line.
    #[test]
    fn hot_functions_are_in_one_line_of_the_cache() {
        let file = object::File::parse(LIBRARY).expect("an ELF file");
        for name in ["malloc", "free"] {
            let mut symbols = file.dynamic_symbols();
            let symbol = symbols
                .find(|symbol| symbol.name() == Ok(name))
                .expect("it has it");
            assert_eq!((symbol.address() % 64, symbol.size()), (0, 64), "{name}");
        }
    }
}
