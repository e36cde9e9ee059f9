//! Names of real programs, as in their symbol tables, and malformed names.

use std::borrow::Cow;

use proptest::prelude::*;

use super::{MAX_NAME, NameStyle, abbreviated};

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (name, expected) in cases {
        assert_eq!(abbreviated(name), *expected, "{name}");
        assert_eq!(abbreviated(expected), *expected, "a second time");
    }
}

#[track_caller]
fn stays(names: &[&str]) {
    for name in names {
        assert!(
            matches!(abbreviated(name), Cow::Borrowed(same) if same == *name),
            "{name}"
        );
    }
}

/// Strings and streams get their common aliases.
#[test]
fn names_of_strings() {
    check(&[
        (
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_replace(unsigned long, \
             unsigned long, char const*, unsigned long)",
            "std::string::_M_replace(unsigned long, unsigned long, char const*, unsigned long)",
        ),
        (
            "std::__1::basic_string<char, std::__1::char_traits<char>, std::__1::allocator<char>>::append(char const*)",
            "std::string::append(char const*)",
        ),
        (
            "std::basic_string<wchar_t, std::char_traits<wchar_t>, std::allocator<wchar_t> >::_Rep::_M_is_shared() const",
            "std::wstring::_Rep::_M_is_shared() const",
        ),
        (
            "std::__cxx11::basic_string<char8_t, std::char_traits<char8_t>, std::allocator<char8_t> >::push_back(char8_t)",
            "std::u8string::push_back(char8_t)",
        ),
        (
            "f(std::basic_string_view<char16_t, std::char_traits<char16_t> >, std::__cxx11::basic_string<char32_t, \
             std::char_traits<char32_t>, std::allocator<char32_t> >)",
            "f(std::u16string_view, std::u32string)",
        ),
        (
            "std::basic_ostream<char, std::char_traits<char> >& std::operator<< <std::char_traits<char> >(\
             std::basic_ostream<char, std::char_traits<char> >&, char const*)",
            "std::ostream& std::operator<< <std::char_traits<char>>(std::ostream&, char const*)",
        ),
        (
            "std::__cxx11::basic_stringbuf<wchar_t, std::char_traits<wchar_t>, std::allocator<wchar_t> >::overflow(unsigned int)",
            "std::wstringbuf::overflow(unsigned int)",
        ),
    ]);
}

/// A constructor or destructor is named after its class's alias.
#[test]
fn constructors() {
    check(&[
        (
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string(char const*, \
             std::allocator<char> const&)",
            "std::string::string(char const*, std::allocator<char> const&)",
        ),
        (
            "std::__cxx11::basic_string<wchar_t, std::char_traits<wchar_t>, std::allocator<wchar_t> >::~basic_string()",
            "std::wstring::~wstring()",
        ),
        (
            "std::__cxx11::basic_stringstream<char, std::char_traits<char>, std::allocator<char> >::basic_stringstream()",
            "std::stringstream::stringstream()",
        ),
        (
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string<char const*, \
             void>(char const*, char const*, std::allocator<char> const&)",
            "std::string::string<char const*, void>(char const*, char const*, std::allocator<char> const&)",
        ),
        ("std::string::basic_string()", "std::string::string()"),
    ]);
}

/// Default arguments of containers are removed.
#[test]
fn default_arguments() {
    check(&[
        (
            "std::vector<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, \
             std::allocator<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > > >::push_back(\
             std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >&&)",
            "std::vector<std::string>::push_back(std::string&&)",
        ),
        (
            "sink(std::map<char const*, std::set<int, std::less<int>, std::allocator<int> >, std::less<char const*>, \
             std::allocator<std::pair<char const* const, std::set<int, std::less<int>, std::allocator<int> > > > >&)",
            "sink(std::map<char const*, std::set<int>>&)",
        ),
        (
            "hold(std::unordered_map<int, std::shared_ptr<X>, std::hash<int>, std::equal_to<int>, \
             std::allocator<std::pair<int const, std::shared_ptr<X> > > >&, char const*)",
            "hold(std::unordered_map<int, std::shared_ptr<X>>&, char const*)",
        ),
        (
            "up(std::unique_ptr<int [], std::default_delete<int []> >&, std::unique_ptr<X, std::default_delete<X> >&)",
            "up(std::unique_ptr<int []>&, std::unique_ptr<X>&)",
        ),
        (
            "std::priority_queue<int, std::vector<int, std::allocator<int> >, std::less<int> >::push(int const&)",
            "std::priority_queue<int>::push(int const&)",
        ),
        (
            "std::_Rb_tree<int, std::pair<int const, X>, std::_Select1st<std::pair<int const, X> >, std::less<int>, \
             std::allocator<std::pair<int const, X> > >::_M_get_node()",
            "std::_Rb_tree<int, std::pair<int const, X>>::_M_get_node()",
        ),
        (
            "std::_Hashtable<int, std::pair<int const, X>, std::allocator<std::pair<int const, X> >, \
             std::__detail::_Select1st, std::equal_to<int>, std::hash<int>, std::__detail::_Mod_range_hashing, \
             std::__detail::_Default_ranged_hash, std::__detail::_Prime_rehash_policy, \
             std::__detail::_Hashtable_traits<false, false, true> >::_M_rehash(unsigned long, unsigned long const&)",
            "std::_Hashtable<int, std::pair<int const, X>>::_M_rehash(unsigned long, unsigned long const&)",
        ),
        (
            "std::__shared_ptr<X, (__gnu_cxx::_Lock_policy)2>::~__shared_ptr()",
            "std::__shared_ptr<X>::~__shared_ptr()",
        ),
    ]);
}

/// An argument that is not the default stays, and so do those before it.
#[test]
fn chosen_arguments() {
    check(&[
        (
            "tg(std::vector<int, Al<int> >&, std::set<int, Cmp, std::allocator<int> >&)",
            "tg(std::vector<int, Al<int>>&, std::set<int, Cmp>&)",
        ),
        (
            "std::map<int, X, std::less<int>, Al<std::pair<int const, X> > >::clear()",
            "std::map<int, X, std::less<int>, Al<std::pair<int const, X>>>::clear()",
        ),
        (
            "std::map<long, X, std::less<void>, std::allocator<std::pair<long const, X> > >::clear()",
            "std::map<long, X, std::less<void>>::clear()",
        ),
        (
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::pmr::polymorphic_allocator<char> >::reserve(long)",
            "std::basic_string<char, std::char_traits<char>, std::pmr::polymorphic_allocator<char>>::reserve(long)",
        ),
        (
            "std::_Hashtable<int, int, std::allocator<int>, std::__detail::_Identity, std::equal_to<int>, Hash, \
             std::__detail::_Mod_range_hashing, std::__detail::_Default_ranged_hash, \
             std::__detail::_Prime_rehash_policy, std::__detail::_Hashtable_traits<true, true, true> >::clear()",
            "std::_Hashtable<int, int, std::allocator<int>, std::__detail::_Identity, std::equal_to<int>, Hash>::clear()",
        ),
    ]);
    stays(&[
        "std::vector<int, std::allocator<long>>::clear()",
        "std::unique_ptr<FILE, int (*)(FILE*)>::~unique_ptr()",
        "std::map<int, int, std::less<int>, std::allocator<std::pair<int, int>>>::clear()",
        "std::shared_ptr<X>::shared_ptr<std::allocator<X>>(std::allocator<X>)",
        // A multimap, whose keys are not unique.
        "std::_Hashtable<int, int, std::allocator<int>, std::__detail::_Identity, std::equal_to<int>, std::hash<int>, \
         std::__detail::_Mod_range_hashing, std::__detail::_Default_ranged_hash, std::__detail::_Prime_rehash_policy, \
         std::__detail::_Hashtable_traits<false, true, false>>::clear()",
        // Not in namespace `std`.
        "mine::std::vector<int, std::allocator<int>>::clear()",
        "mine::vector<int, std::allocator<int>>::clear()",
        "Outer<int>::std::vector<int, std::allocator<int>>::clear()",
    ]);
}

/// Inline namespaces and ABI tags are removed; namespaces that are not inline stay.
#[test]
fn marks_of_the_abi() {
    check(&[
        (
            "std::filesystem::__cxx11::path::path()",
            "std::filesystem::path::path()",
        ),
        (
            "std::_V2::error_category::message(int) const",
            "std::error_category::message(int) const",
        ),
        (
            "std::chrono::_V2::system_clock::now()",
            "std::chrono::system_clock::now()",
        ),
        ("std::__ndk1::thread::join()", "std::thread::join()"),
        (
            "std::__detail::_Scanner<char>::_M_get_value[abi:cxx11]() const",
            "std::__detail::_Scanner<char>::_M_get_value() const",
        ),
        ("Config::name[abi:cxx11]() const", "Config::name() const"),
        (
            "std::__1::vector<int>::begin[abi:v160006]()",
            "std::vector<int>::begin()",
        ),
        ("std::X::operator[][abi:cxx11](int)", "std::X::operator[](int)"),
    ]);
    stays(&[
        "std::__debug::vector<int>::push_back(int const&)",
        "std::__cxx1998::deque<int>::clear()",
        "std::ranges::__cust_access::_End::operator()(int&)",
        "mine::__1::vector<int>::clear() std::x",
        "mine::tagged[abi:v2](std::shared_ptr<int>)",
    ]);
}

/// Names outside the standard libraries stay, apart from the spelling of `> >`.
#[test]
fn program_names_are_unchanged() {
    check(&[
        (
            "Foo<Bar<int>, Baz<Qux<char> > >::f()",
            "Foo<Bar<int>, Baz<Qux<char>>>::f()",
        ),
        (
            "(anonymous namespace)::Hidden::add(std::vector<int, std::allocator<int> >)",
            "(anonymous namespace)::Hidden::add(std::vector<int>)",
        ),
        (
            "void std::__invoke_impl<void, main::{lambda(std::vector<int, std::allocator<int> >)#2}, int>(std::__invoke_other)",
            "void std::__invoke_impl<void, main::{lambda(std::vector<int>)#2}, int>(std::__invoke_other)",
        ),
        (
            "decltype (((({parm#1}.size)())<(3))?(std::vector<int, std::allocator<int> >()) : (std::vector<int, \
             std::allocator<int> >())) dt<int>(int)",
            "decltype (((({parm#1}.size)())<(3))?(std::vector<int>()) : (std::vector<int>())) dt<int>(int)",
        ),
        (
            "If<((5)>(3))> gt<std::vector<int, std::allocator<int> > >()",
            "If<((5)>(3))> gt<std::vector<int>>()",
        ),
    ]);
    stays(&[
        "malloc",
        "_start",
        "slow_leak(int, unsigned long, char const*)",
        "operator new(unsigned long)",
        "std::function<std::pair<int, int> (char)>::operator()(char) const",
        "If<((1)<<(3))> lt<(Color)2>(std::x)",
    ]);
}

/// Signs of operators are not brackets, with or without template arguments.
#[test]
fn operators() {
    check(&[
        (
            "X::operator std::vector<int, std::allocator<int> >() const",
            "X::operator std::vector<int>() const",
        ),
        (
            "bool std::operator< <std::vector<int, std::allocator<int> > >(int)",
            "bool std::operator< <std::vector<int>>(int)",
        ),
        (
            "std::basic_istream<char, std::char_traits<char> >& std::operator>><char, std::char_traits<char> >(\
             std::basic_istream<char, std::char_traits<char> >&, char*)",
            "std::istream& std::operator>><char, std::char_traits<char>>(std::istream&, char*)",
        ),
        (
            "g<&X::operator->, std::vector<int, std::allocator<int> > >()",
            "g<&X::operator->, std::vector<int>>()",
        ),
        (
            "long __gnu_cxx::operator-<int*, std::vector<int, std::allocator<int> > >(int)",
            "long __gnu_cxx::operator-<int*, std::vector<int>>(int)",
        ),
        (
            "std::less<std::vector<int, std::allocator<int> > >::operator()<int>(int) const",
            "std::less<std::vector<int>>::operator()<int>(int) const",
        ),
        (
            "std::strong_ordering operator<=><int, std::vector<int, std::allocator<int> > >(int)",
            "std::strong_ordering operator<=><int, std::vector<int>>(int)",
        ),
    ]);
    stays(&[
        "std::X::operator<(std::X const&) const",
        "std::X::operator<<(int)",
        "std::X::operator>(std::X const&) const",
        "std::X::operator->() const",
        "std::f<&X::operator> >()",
        "std::X::operator,(int)",
    ]);
}

/// Rust names become those of the prelude, without the global allocator.
#[test]
fn names_of_rust() {
    check(&[
        ("<alloc::vec::Vec<u8>>::push", "<Vec<u8>>::push"),
        (
            "<alloc::raw_vec::RawVec<u8, alloc::alloc::Global>>::grow_one",
            "<alloc::raw_vec::RawVec<u8>>::grow_one",
        ),
        (
            "alloc::vec::Vec<alloc::vec::Vec<u8, alloc::alloc::Global>, alloc::alloc::Global>::push",
            "Vec<Vec<u8>>::push",
        ),
        (
            "<alloc::string::String as core::fmt::Display>::fmt",
            "<String as core::fmt::Display>::fmt",
        ),
        (
            "<alloc::vec::Vec<T,A> as core::clone::Clone>::clone",
            "<Vec<T,A> as Clone>::clone",
        ),
        (
            "core::ptr::drop_in_place::<core::option::Option<core::result::Result<(), alloc::boxed::Box<dyn \
             core::any::Any + core::marker::Send>>>>",
            "core::ptr::drop_in_place::<Option<Result<(), Box<dyn core::any::Any + Send>>>>",
        ),
        (
            "<alloc::sync::Arc<[u8; 4], std::alloc::System>>::drop_slow::h0123456789abcdef",
            "<alloc::sync::Arc<[u8; 4], std::alloc::System>>::drop_slow",
        ),
        (
            "std::collections::hash::map::HashMap<u8, fn(u8) -> u8, std::hash::random::RandomState>::insert",
            "std::collections::hash::map::HashMap<u8, fn(u8) -> u8>::insert",
        ),
        (
            "core::iter::traits::iterator::Iterator::collect::{{closure}}",
            "Iterator::collect::{{closure}}",
        ),
    ]);
    stays(&[
        "alloc::vec::Vector::f",
        "mine::alloc::vec::Vec<u8>::f",
        "alloc::alloc::Global",
        "f::<alloc::alloc::Global>",
        "std::io::main::h0123",
        "core::fmt::Write::write_fmt",
    ]);
}

/// Malformed names are shortened where they can be parsed; the rest stays.
#[test]
fn malformed_names() {
    check(&[
        (
            "std::vector<int, std::allocator<int> >)>>::x",
            "std::vector<int>)>>::x",
        ),
        ("<<<((std::__cxx11::x", "<<<((std::x"),
        (
            "std::f(std::vector<int, std::allocator<int>)",
            "std::f(std::vector<int, std::allocator<int>)",
        ),
        ("größe::<alloc::vec::Vec<é>>", "größe::<Vec<é>>"),
    ]);
    stays(&[
        "std::",
        "std::<",
        "std::>",
        "std::vector<",
        "std::operator",
        "::h0123456789abcdef",
    ]);
    let deep = |name: &str, times: usize| name.repeat(times);
    let max = deep("std::vector<", MAX_NAME / 12);
    assert_eq!(abbreviated(&max), max);
    let beyond = deep("std::__1::", MAX_NAME);
    assert!(
        matches!(abbreviated(&beyond), Cow::Borrowed(_)),
        "too long to be looked at"
    );
}

/// The verbatim style returns the exact name.
#[test]
fn styles() {
    let name = "std::vector<int, std::allocator<int> >::clear()";
    assert_eq!(NameStyle::default().show(name), "std::vector<int>::clear()");
    assert_eq!(NameStyle::Verbatim.show(name), name);
}

/// Parts of names that can be shortened, and misleading ones.
const PIECES: &str = "std:: __cxx11:: __1:: _V2 vector basic_string ~ char int map allocator string é $ operator operator< () \
    std::allocator< std::char_traits<char> std::less<int> std::vector< std::pair< alloc::vec::Vec alloc:: \
    alloc::alloc::Global core::option::Option [abi:cxx11] [abi: ::h0123456789abcdef < < > > >> , ( ) [ ] { } :: : - -> * \
    std::basic_string<char,std::char_traits<char>,std::allocator<char>>";

/// Pieces and spaces in any order.
fn pieces() -> impl Strategy<Value = String> {
    let pieces: Vec<&str> = PIECES.split(' ').chain([" ", "> >", ", "]).collect();
    proptest::collection::vec(proptest::sample::select(pieces), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// Shortening is idempotent and never makes a name longer.
    #[test]
    fn shortening_is_idempotent(name in pieces()) {
        let once = abbreviated(&name);
        prop_assert!(once.len() <= name.len());
        prop_assert_eq!(abbreviated(&once), &*once);
    }

    /// Any text can be shortened without a panic, idempotently.
    #[test]
    fn any_text(name in ".*", prefix in "(std::|alloc::|core::)?") {
        let name = prefix + &name;
        let once = abbreviated(&name);
        prop_assert_eq!(abbreviated(&once), &*once);
    }

    /// Names without parts of the standard libraries are borrowed unchanged.
    #[test]
    fn foreign_names(name in "([a-zA-Z_]{1,6}|::|<|>|, |\\(|\\)|operator|[0-9*&\\[\\]{}#~-]){0,30}") {
        prop_assume!(!["std::", "alloc::", "core::", "::h"].iter().any(|mark| name.contains(mark)));
        prop_assert!(matches!(abbreviated(&name), Cow::Borrowed(same) if same == name));
    }
}
