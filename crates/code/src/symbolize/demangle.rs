//! Demangling of symbol names. Pure.
//!
//! Names come from untrusted files, and a mangled name can expand exponentially, so the writer stops at a
//! limit, instead of measuring the result.

use std::fmt::{self, Write};

/// Maximum length of a demangled name in bytes.
const MAX_NAME: usize = 4096;

/// Demangles a linker name; returns the name itself if it is not mangled, or if the result would be too long.
pub fn demangle(name: &[u8]) -> String {
    let name = &name[..name.len().min(MAX_NAME)];
    let text = String::from_utf8_lossy(name);
    rust(&text)
        .or_else(|| cpp(name))
        .unwrap_or_else(|| text.into_owned())
}

/// Demangles a C++ name; `None` if it is not one, or if the result would be too long.
pub fn demangled(name: &[u8]) -> Option<String> {
    cpp(name.get(..MAX_NAME).unwrap_or(name))
}

/// Demangles a Rust name, without its hash.
fn rust(name: &str) -> Option<String> {
    // A legacy Rust name is a valid C++ name too; only its hash distinguishes it.
    if !name.starts_with("_R") && !has_rust_hash(name) {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    bounded(|out| write!(out, "{demangled:#}"))
}

/// True if the last component is `17h` and 16 hexadecimal digits, with or without a suffix such as
/// `.llvm.123`.
fn has_rust_hash(name: &str) -> bool {
    let Some((_, hash)) = name.rsplit_once("17h") else {
        return false;
    };
    let bytes = hash.as_bytes();
    bytes.get(16) == Some(&b'E')
        && bytes.iter().take(16).all(u8::is_ascii_hexdigit)
        && matches!(bytes.get(17), None | Some(b'.'))
}

/// Demangles a C++ name, with its parameters.
fn cpp(name: &[u8]) -> Option<String> {
    if !name.starts_with(b"_Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    bounded(|out| symbol.structured_demangle(out, &cpp_demangle::DemangleOptions::new()))
}

fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded(String::new());
    write(&mut out).ok()?;
    Some(out.0)
}

/// Text that fails to grow beyond [`MAX_NAME`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of each language are demangled as by its own tools; other names stay unchanged.
    #[test]
    fn names() {
        let cases = [
            ("_Znwm", "operator new(unsigned long)"),
            ("_ZN7LeakLib14slowMemoryLeakEv", "LeakLib::slowMemoryLeak()"),
            (
                "_ZN3Foo3barERKSsi.part.0",
                "Foo::bar(std::string const&, int) [clone .part.0]",
            ),
            ("_Z3maxIiET_S0_S0_", "int max<int>(int, int)"),
            ("_ZN3foo3barE", "foo::bar"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_ZN3std2io4main17h0123456789abcdefE.llvm.1234", "std::io::main"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("malloc", "malloc"),
            ("_start", "_start"),
            ("_Z", "_Z"),
            ("", ""),
        ];
        for (mangled, expected) in cases {
            assert_eq!(demangle(mangled.as_bytes()), expected, "{mangled}");
        }
    }

    /// A name of 200 bytes that expands to 2^18 stays mangled.
    #[test]
    fn exponential_names_stay_mangled() {
        // Each parameter is a template of the one before it, twice.
        let parameters: String = (0..18)
            .map(|n| {
                let previous = char::from_digit(2 * n, 36).map(|digit| digit.to_ascii_uppercase());
                previous.map_or(String::new(), |digit| format!("1PIS{digit}_S{digit}_E"))
            })
            .collect();
        let mangled = format!("_Z1f1PIiiE{parameters}");
        assert_eq!(demangle(mangled.as_bytes()), mangled);
        let short = "f(P<int, int>, P<P<int, int>, P<int, int> >)";
        assert_eq!(demangle(b"_Z1f1PIiiE1PIS0_S0_E"), short);
    }

    /// Names that are not UTF-8, or exceed the maximum, are shown as far as possible.
    #[test]
    fn odd_names() {
        assert_eq!(demangle(b"caf\xe9"), "caf\u{fffd}");
        assert_eq!(demangle(&vec![b'a'; 100_000]).len(), MAX_NAME);
    }
}
