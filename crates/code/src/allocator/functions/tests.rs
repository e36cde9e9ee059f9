use super::*;
use crate::allocator::FUNCTIONS;

/// Names are unique, and no row reads more than the six register arguments.
#[test]
fn rows_are_distinct_and_readable() {
    for (index, function) in FUNCTIONS.iter().enumerate() {
        assert!(
            FUNCTIONS[..index].iter().all(|other| other.name != function.name),
            "{}",
            function.name
        );
        assert!(
            function.shape.arguments().all(|argument| argument < 6),
            "{}",
            function.name
        );
    }
}

/// A role and its shape agree: freeing functions name a block, allocating functions have a size and a result.
#[test]
fn shapes_fit_roles() {
    for AllocFunction {
        name, role, shape, ..
    } in FUNCTIONS
    {
        let frees = *role != Role::Allocate;
        let allocates = role.allocates();
        assert_eq!(shape.block.is_some(), frees, "{name}");
        assert_eq!(shape.size != SizeAt::Nowhere, allocates, "{name}");
        assert_eq!(shape.result != ResultAt::Nowhere, allocates, "{name}");
    }
}

/// Arguments that a probe reads, by function name.
#[test]
fn arguments() {
    let cases: &[(&str, &[u8])] = &[
        ("malloc", &[0]),
        ("calloc", &[0, 1]),
        ("realloc", &[0, 1]),
        ("reallocarray", &[0, 1, 2]),
        ("posix_memalign", &[0, 2]),
        ("aligned_alloc", &[1]),
        ("free", &[0]),
        ("mallocx", &[0]),
        ("xallocx", &[0, 1]),
        ("sdallocx", &[0]),
        ("_ZnwmSt11align_val_t", &[0]),
        ("_ZdlPvmSt11align_val_t", &[0]),
        ("mi_heap_calloc_aligned", &[1, 2]),
        ("mi_new_reallocn", &[0, 1, 2]),
        ("__rust_realloc", &[0, 3]),
    ];
    for (name, expected) in cases {
        let function = FUNCTIONS
            .iter()
            .find(|function| function.name == *name)
            .expect("a row");
        let mut arguments: Vec<u8> = function.shape.arguments().collect();
        arguments.sort_unstable();
        assert_eq!(arguments, *expected, "{name}");
    }
}

/// `operator new` throws unless its name says otherwise, and so do the functions that replace it. No function
/// of C does.
#[test]
fn throwing_functions() {
    for function in FUNCTIONS {
        let name = &function.name;
        let is_new = name.starts_with("_Zn");
        let expected = (is_new && !name.contains("nothrow"))
            || [
                "tc_new",
                "mi_new",
                "mi_heap_alloc_new",
                "mi_theap_alloc_new",
                "TCMallocInternalNew",
                "__size_returning_new",
            ]
            .iter()
            .any(|start| name.starts_with(start) && !name.to_lowercase().contains("nothrow"));
        let expected = if expected {
            Returns::OrThrows
        } else {
            Returns::Always
        };
        assert_eq!(function.returns, expected, "{name}");
    }
}
