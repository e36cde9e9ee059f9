//! Default template arguments and aliases of the C++ and Rust standard libraries.

/// Template and the defaults of its last parameters.
struct Template {
    name: &'static str,
    /// Number of parameters without a default.
    required: usize,
    /// Default of each further parameter. `$0` is the first argument, as written; `|` separates alternatives.
    defaults: &'static [&'static str],
}

const ALLOCATOR: &str = "std::allocator<$0>";
const TRAITS: &str = "std::char_traits<$0>";
const LESS: &str = "std::less<$0>";
const EQUAL: &str = "std::equal_to<$0>";
const HASH: &str = "std::hash<$0>";
const MAP_ALLOCATOR: &str = "std::allocator<std::pair<$0 const, $1>>";
/// Lock policy of shared pointers, which is the same in all programs for Linux.
const LOCK_POLICY: &str = "(__gnu_cxx::_Lock_policy)2";

/// Function objects by which libstdc++ gets the key of an element; they follow from the element type.
const KEY_OF: &str = "std::__detail::_Select1st|std::__detail::_Identity";
const RANGE: &str = "std::__detail::_Mod_range_hashing";
const RANGED: &str = "std::__detail::_Default_ranged_hash";
const REHASH: &str = "std::__detail::_Prime_rehash_policy";
/// Traits of containers with unique keys; the rest follows from the key and its hash.
const UNIQUE: &str = "std::__detail::_Hashtable_traits<false, false, true>\
    |std::__detail::_Hashtable_traits<true, false, true>\
    |std::__detail::_Hashtable_traits<false, true, true>\
    |std::__detail::_Hashtable_traits<true, true, true>";

const fn template(name: &'static str, required: usize, defaults: &'static [&'static str]) -> Template {
    Template {
        name,
        required,
        defaults,
    }
}

/// Known C++ templates. Arguments are in the standard's order, or in libstdc++'s for its own templates.
const TEMPLATES: [Template; 51] = [
    template("std::vector", 1, &[ALLOCATOR]),
    template("std::deque", 1, &[ALLOCATOR]),
    template("std::list", 1, &[ALLOCATOR]),
    template("std::forward_list", 1, &[ALLOCATOR]),
    template("std::set", 1, &[LESS, ALLOCATOR]),
    template("std::multiset", 1, &[LESS, ALLOCATOR]),
    template("std::map", 2, &[LESS, MAP_ALLOCATOR]),
    template("std::multimap", 2, &[LESS, MAP_ALLOCATOR]),
    template("std::unordered_set", 1, &[HASH, EQUAL, ALLOCATOR]),
    template("std::unordered_multiset", 1, &[HASH, EQUAL, ALLOCATOR]),
    template("std::unordered_map", 2, &[HASH, EQUAL, MAP_ALLOCATOR]),
    template("std::unordered_multimap", 2, &[HASH, EQUAL, MAP_ALLOCATOR]),
    template("std::stack", 1, &["std::deque<$0>"]),
    template("std::queue", 1, &["std::deque<$0>"]),
    template("std::priority_queue", 1, &["std::vector<$0>", LESS]),
    template("std::unique_ptr", 1, &["std::default_delete<$0>"]),
    template("std::basic_string", 1, &[TRAITS, ALLOCATOR]),
    template("std::basic_string_view", 1, &[TRAITS]),
    template("std::basic_ios", 1, &[TRAITS]),
    template("std::basic_istream", 1, &[TRAITS]),
    template("std::basic_ostream", 1, &[TRAITS]),
    template("std::basic_iostream", 1, &[TRAITS]),
    template("std::basic_streambuf", 1, &[TRAITS]),
    template("std::basic_stringbuf", 1, &[TRAITS, ALLOCATOR]),
    template("std::basic_istringstream", 1, &[TRAITS, ALLOCATOR]),
    template("std::basic_ostringstream", 1, &[TRAITS, ALLOCATOR]),
    template("std::basic_stringstream", 1, &[TRAITS, ALLOCATOR]),
    template("std::basic_filebuf", 1, &[TRAITS]),
    template("std::basic_ifstream", 1, &[TRAITS]),
    template("std::basic_ofstream", 1, &[TRAITS]),
    template("std::basic_fstream", 1, &[TRAITS]),
    template("std::basic_regex", 1, &["std::regex_traits<$0>"]),
    template("std::match_results", 1, &["std::allocator<std::sub_match<$0>>"]),
    template("std::istreambuf_iterator", 1, &[TRAITS]),
    template("std::ostreambuf_iterator", 1, &[TRAITS]),
    template("std::num_get", 1, &["std::istreambuf_iterator<$0>"]),
    template("std::num_put", 1, &["std::ostreambuf_iterator<$0>"]),
    template("std::money_get", 1, &["std::istreambuf_iterator<$0>"]),
    template("std::money_put", 1, &["std::ostreambuf_iterator<$0>"]),
    template("std::time_get", 1, &["std::istreambuf_iterator<$0>"]),
    template("std::time_put", 1, &["std::ostreambuf_iterator<$0>"]),
    // Templates between a container's function and `operator new`.
    template("std::_Vector_base", 1, &[ALLOCATOR]),
    template("std::_Deque_base", 1, &[ALLOCATOR]),
    template("std::_List_base", 1, &[ALLOCATOR]),
    template("std::_Fwd_list_base", 1, &[ALLOCATOR]),
    template(
        "std::_Rb_tree",
        2,
        &[
            "std::_Select1st<$1>|std::_Identity<$1>",
            LESS,
            "std::allocator<$1>",
        ],
    ),
    template(
        "std::_Hashtable",
        2,
        &[
            "std::allocator<$1>",
            KEY_OF,
            EQUAL,
            HASH,
            RANGE,
            RANGED,
            REHASH,
            UNIQUE,
        ],
    ),
    template(
        "std::__detail::_Map_base",
        2,
        &[
            "std::allocator<$1>",
            KEY_OF,
            EQUAL,
            HASH,
            RANGE,
            RANGED,
            REHASH,
            UNIQUE,
            "true",
        ],
    ),
    template("std::__shared_ptr", 1, &[LOCK_POLICY]),
    template("std::__weak_ptr", 1, &[LOCK_POLICY]),
    template(
        "std::_Sp_counted_ptr_inplace",
        1,
        &["std::allocator<$0>|std::allocator<void>", LOCK_POLICY],
    ),
];

/// Rust's hash tables, whose last parameter is not from the `alloc` crate.
const RUST_TEMPLATES: [Template; 4] = [
    template("std::collections::hash::map::HashMap", 2, &[RANDOM]),
    template("std::collections::hash::set::HashSet", 1, &[RANDOM]),
    template("hashbrown::map::HashMap", 3, &[GLOBAL]),
    template("hashbrown::set::HashSet", 2, &[GLOBAL]),
];
const RANDOM: &str = "std::hash::random::RandomState";
const GLOBAL: &str = "alloc::alloc::Global";

/// Returns how many arguments to write, at least 1: all but the last ones that equal their defaults.
pub(super) fn kept(template: &str, arguments: &[&str]) -> usize {
    let mut kept = arguments.len();
    let known = TEMPLATES
        .iter()
        .chain(&RUST_TEMPLATES)
        .find(|known| known.name == template);
    match known {
        Some(known) if kept <= known.required + known.defaults.len() => {
            while kept > known.required
                && is_default(known.defaults[kept - known.required - 1], arguments, kept)
            {
                kept -= 1;
            }
        }
        // In the `alloc` crate, the allocator is always the last argument.
        None if is_of_alloc(template) && kept > 1 && is_default(GLOBAL, arguments, kept) => kept -= 1,
        _ => {}
    }
    kept
}

/// Returns whether the last of `count` arguments is the default and can be removed: after the argument before
/// it, `>` must be a closing bracket, not part of `->` or an operator's name.
fn is_default(default: &str, arguments: &[&str], count: usize) -> bool {
    let before = arguments[count - 2];
    default
        .split('|')
        .any(|pattern| fits(pattern, arguments, arguments[count - 1]))
        && !before.ends_with('-')
        && !before.ends_with("operator")
}

/// Returns whether `text` is the pattern with its arguments inserted.
fn fits(pattern: &str, arguments: &[&str], text: &str) -> bool {
    let mut pieces = pattern.split('$');
    let first = pieces.next().and_then(|first| text.strip_prefix(first));
    let last = pieces.try_fold(first, |rest, piece| {
        let (number, literal) = piece.split_at_checked(1)?;
        let argument = arguments.get(number.parse::<usize>().ok()?)?;
        Some(rest?.strip_prefix(argument)?.strip_prefix(literal))
    });
    last.flatten() == Some("")
}

fn is_of_alloc(template: &str) -> bool {
    template.starts_with("alloc::") || matches!(template, "Vec" | "Box" | "hashbrown::raw::RawTable")
}

/// Templates with aliases for some character types, without their `std::basic_`.
const ALIASED: [&str; 16] = [
    "string",
    "string_view",
    "ios",
    "istream",
    "ostream",
    "iostream",
    "streambuf",
    "stringbuf",
    "istringstream",
    "ostringstream",
    "stringstream",
    "filebuf",
    "ifstream",
    "ofstream",
    "fstream",
    "regex",
];

/// Character types and the prefixes of their aliases.
const CHARACTERS: [(&str, &str); 5] = [
    ("char", ""),
    ("wchar_t", "w"),
    ("char8_t", "u8"),
    ("char16_t", "u16"),
    ("char32_t", "u32"),
];

/// Character types and prefixes of the aliases of a template.
fn prefixes(base: &str) -> &'static [(&'static str, &'static str)] {
    match base {
        "string" | "string_view" => &CHARACTERS,
        _ => &CHARACTERS[..2],
    }
}

/// Returns the alias of a template with this only argument: `std::string`.
pub(super) fn alias(template: &str, character: &str) -> Option<String> {
    let base = template.strip_prefix("std::basic_")?;
    let base = ALIASED.iter().find(|&&other| other == base)?;
    let characters = prefixes(base);
    let (_, prefix) = characters.iter().find(|(other, _)| *other == character)?;
    Some(format!("std::{prefix}{base}"))
}

/// For a constructor or destructor of a class with an alias, such as `std::string::` and `~basic_string`:
/// number of bytes to replace at the end of the identifier, and the replacement.
pub(super) fn constructed(class: &str, identifier: &str) -> Option<(usize, String)> {
    let template = identifier.strip_prefix('~').unwrap_or(identifier);
    let base = template.strip_prefix("basic_")?;
    let name = class.strip_suffix("::")?.strip_prefix("std::")?;
    let prefix = name.strip_suffix(base)?;
    let is_alias = ALIASED.contains(&base) && prefixes(base).iter().any(|(_, other)| *other == prefix);
    is_alias.then(|| (template.len(), name.to_owned()))
}

/// Returns whether `identifier` after `path` is an inline namespace of the standard libraries' ABI.
pub(super) fn is_inline(path: &str, identifier: &str) -> bool {
    // libstdc++'s new strings, its new clocks and conditions, libc++, libc++ on Android.
    let is_inline = matches!(identifier, "__cxx11" | "_V2" | "__1" | "__ndk1");
    // A class cannot contain a namespace.
    is_inline
        && path.starts_with("std::")
        && path.ends_with("::")
        && path
            .chars()
            .all(|character| character == ':' || super::is_identifier(character))
}

/// Returns the prelude name of a complete path in Rust's `alloc` or `core`.
pub(super) fn prelude(path: &str) -> Option<&'static str> {
    PRELUDE
        .iter()
        .filter(|_| path.starts_with("alloc::") || path.starts_with("core::"))
        .find_map(|(module, names)| {
            let name = path.strip_prefix(module)?.strip_prefix("::")?;
            names.iter().find(|&&other| other == name).copied()
        })
}

/// Types and traits of Rust's prelude, by module.
const PRELUDE: [(&str, &[&str]); 19] = [
    ("alloc::vec", &["Vec"]),
    ("alloc::string", &["String", "ToString"]),
    ("alloc::boxed", &["Box"]),
    ("alloc::borrow", &["ToOwned"]),
    ("core::option", &["Option"]),
    ("core::result", &["Result"]),
    ("core::clone", &["Clone"]),
    ("core::cmp", &["Eq", "Ord", "PartialEq", "PartialOrd"]),
    (
        "core::convert",
        &["AsMut", "AsRef", "From", "Into", "TryFrom", "TryInto"],
    ),
    ("core::default", &["Default"]),
    ("core::marker", &["Copy", "Send", "Sized", "Sync", "Unpin"]),
    ("core::ops::drop", &["Drop"]),
    ("core::ops::function", &["Fn", "FnMut", "FnOnce"]),
    ("core::iter::traits::iterator", &["Iterator"]),
    (
        "core::iter::traits::collect",
        &["Extend", "FromIterator", "IntoIterator"],
    ),
    ("core::iter::traits::double_ended", &["DoubleEndedIterator"]),
    ("core::iter::traits::exact_size", &["ExactSizeIterator"]),
    ("core::future::future", &["Future"]),
    ("core::future::into_future", &["IntoFuture"]),
];
