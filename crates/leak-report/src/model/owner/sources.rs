//! Source files of standard libraries. They identify functions whose namespace debug information omits, or
//! that have the name of a C function.

/// Headers of C libraries that are in the same directory as headers of other libraries. As a rule, their
/// inline functions are in separate directories (`bits`), but `atoi` is in `stdlib.h`.
const HEADERS: [&str; 12] = [
    "ctype.h",
    "dirent.h",
    "malloc.h",
    "obstack.h",
    "stdio.h",
    "stdlib.h",
    "string.h",
    "strings.h",
    "time.h",
    "unistd.h",
    "wchar.h",
    "wctype.h",
];

/// Directories of a C library's own headers: glibc's and musl's parts, the checked variants of musl systems
/// (`fortify-headers`), and headers about the kernel.
const DIRECTORIES: [&str; 3] = ["bits/", "fortify/", "sys/"];

/// True for a source file of a standard library: of C, of C++ (GNU's or LLVM's), of Rust, or of Zig.
pub(super) fn is_standard(file: &str) -> bool {
    let is_of_zig = || file.ends_with(".zig") && file.contains("/lib/std/") || file.contains("/lib/zig/std/");
    file.contains("/include/c++/")
        || file.starts_with("/rustc/") && file.contains("/library/")
        || system_header(file).is_some_and(is_of_c)
        || is_of_zig()
}

/// Path of a header below a system's include directory, without the directory of a machine
/// (`x86_64-linux-gnu`).
///
/// Include directories are `/usr/include`, also below the root of another system, `/usr/TARGET/include` of a
/// compiler for other machines, `/usr/local/musl/include`, and those of package managers with a directory per
/// package (Nix, Guix).
fn system_header(file: &str) -> Option<&str> {
    const INCLUDE: &str = "/include/";
    let is_of_system = ["/usr/", "/nix/store/", "/gnu/store/"]
        .iter()
        .any(|root| file.starts_with(root));
    let (_, header) = match file.split_once("/usr/include/") {
        Some(parts) => parts,
        None if is_of_system => file.split_once(INCLUDE)?,
        None => return None,
    };
    match header.split_once('/') {
        Some((machine, header)) if machine.contains("-linux-") => Some(header),
        Some(_) | None => Some(header),
    }
}

fn is_of_c(header: &str) -> bool {
    DIRECTORIES.iter().any(|directory| header.starts_with(directory)) || HEADERS.contains(&header)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of C libraries of all systems are a standard library's, wherever they are; others' and a
    /// program's are not.
    #[test]
    fn files() {
        for file in [
            "/usr/include/x86_64-linux-gnu/bits/stdio.h",
            "/usr/include/aarch64-linux-gnu/bits/stdio2.h",
            "/usr/include/bits/stdio2.h",
            "/usr/aarch64-linux-gnu/include/bits/stdio.h",
            "/opt/sdk/sysroots/cortexa72/usr/include/bits/stdio2.h",
            "/usr/include/fortify/stdio.h",
            "/usr/include/x86_64-linux-musl/stdlib.h",
            "/usr/local/musl/include/string.h",
            "/nix/store/0a1b-glibc-2.40-dev/include/bits/stdio2.h",
            "/usr/include/stdlib.h",
            "/usr/include/c++/12/bits/stl_vector.h",
            "/rustc/59807616/library/alloc/src/alloc.rs",
            "/opt/zig-0.13.0/lib/std/mem/Allocator.zig",
            "/usr/lib/zig/std/heap.zig",
        ] {
            assert!(is_standard(file), "{file}");
        }
        for file in [
            "/usr/include/glib-2.0/glib/gstrfuncs.h",
            "/usr/include/boost/smart_ptr/make_shared.hpp",
            "/usr/include/sqlite3.h",
            "/home/user/project/include/bits/stdio.h",
            "/home/user/project/include/string.h",
            "/usr/src/service/main.c",
            "/home/user/project/lib/std.zig",
            "bits/stdio.h",
            "",
        ] {
            assert!(!is_standard(file), "{file}");
        }
    }
}
