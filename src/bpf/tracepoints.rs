//! Layouts of the running kernel's allocation tracepoints, and names of its allocation functions, from its
//! type information (BTF).
//!
//! The arguments of a tracepoint differ between kernels: until 6.0, slab tracepoints have the sizes behind
//! the address or behind the cache, and `_node` variants; from 6.1 on, one tracepoint serves both, and that
//! of the caches has no size argument: the cache has it. The layout is chosen by the arguments' types, not by
//! version numbers.

use std::fs;

use libbpf_rs::btf::types::{Func, FuncProto, Ptr, Struct, Typedef};
use libbpf_rs::btf::{Btf, BtfType};
use libbpf_rs::{HasSize, ReferencesType};
use thiserror::Error;

/// Reason why the kernel's allocations cannot be traced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TracepointError {
    #[error(
        "cannot read the kernel's type information (/sys/kernel/btf/vmlinux): a kernel built with \
         CONFIG_DEBUG_INFO_BTF is needed to trace its allocations"
    )]
    NoBtf,
    /// A required tracepoint is missing.
    #[error("this kernel has no tracepoint {group}:{name}: it must be built with CONFIG_TRACEPOINTS")]
    Missing { group: &'static str, name: &'static str },
    /// A tracepoint has an unknown layout.
    #[error("the tracepoint {0} of this kernel has arguments that memleak does not know: please report it")]
    Unknown(&'static str),
}

/// Type of a tracepoint's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Argument {
    /// `size_t`.
    Size,
    /// `struct kmem_cache *`.
    Cache,
    /// Any other pointer.
    Pointer,
    /// Anything else.
    Other,
}

/// Position of the requested size in a slab tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeAt {
    /// In this argument, 2 or 3 (from 0).
    Argument(u32),
    /// Object size of the cache in argument 2.
    Cache,
}

impl SizeAt {
    /// The first size argument is the requested size; the allocated one follows it.
    fn of(arguments: &[Argument]) -> Option<Self> {
        let size = arguments.iter().position(|&argument| argument == Argument::Size);
        match size {
            Some(2) => Some(Self::Argument(2)),
            Some(3) => Some(Self::Argument(3)),
            None if arguments.get(2) == Some(&Argument::Cache) => Some(Self::Cache),
            _ => None,
        }
    }

    /// Value of the kernel side's knob: 0 for the cache's size.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Argument(number) => number,
            Self::Cache => 0,
        }
    }
}

/// Returns whether the per-CPU allocator's tracepoint begins with the caller's address (since 5.19); `None`
/// for an unknown layout.
fn percpu_has_caller(arguments: &[Argument]) -> Option<bool> {
    let size = arguments.iter().position(|&argument| argument == Argument::Size);
    let is_pointer = |number: usize| arguments.get(number) == Some(&Argument::Pointer);
    match size {
        Some(3) if is_pointer(7) => Some(true),
        Some(2) if is_pointer(6) => Some(false),
        _ => None,
    }
}

/// Allocation events of the kernel. `None`: this kernel does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelEvents {
    pub(super) kmalloc: SizeAt,
    pub(super) kmalloc_node: Option<SizeAt>,
    pub(super) cache_alloc: SizeAt,
    pub(super) cache_alloc_node: Option<SizeAt>,
    /// True if the per-CPU event begins with the caller's address.
    pub(super) percpu_has_caller: Option<bool>,
    /// Function that allocates many objects at once.
    pub(super) bulk_alloc: Option<&'static str>,
    /// Function that frees many objects at once.
    pub(super) bulk_free: Option<&'static str>,
    /// Function that collects objects to be freed together later.
    pub(super) sheaf_free: Option<&'static str>,
    /// Size of `struct page` in bytes; 0 if unknown.
    pub(super) page_descriptor_bytes: u32,
}

impl KernelEvents {
    /// Reads the layouts of the running kernel.
    ///
    /// # Errors
    ///
    /// The missing tracepoint or type information, and the option to build the kernel with.
    pub fn read() -> Result<Self, TracepointError> {
        if !fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
            return Err(TracepointError::NoBtf);
        }
        let btf = Btf::from_vmlinux().map_err(|_| TracepointError::NoBtf)?;
        let kmem = |name| Missing { group: "kmem", name }.unless(arguments(&btf, name));
        for name in ["kfree", "kmem_cache_free", "mm_page_alloc", "mm_page_free"] {
            kmem(name)?;
        }
        let size_at = |name, arguments: Vec<_>| SizeAt::of(&arguments).ok_or(TracepointError::Unknown(name));
        let optional = |name| {
            arguments(&btf, name)
                .map(|arguments| size_at(name, arguments))
                .transpose()
        };
        let percpu = "percpu_alloc_percpu";
        let function = |names: &[&'static str]| {
            let exists = |name: &&&str| btf.type_by_name::<Func<'_>>(name).is_some();
            names.iter().find(exists).copied()
        };
        Ok(Self {
            kmalloc: size_at("kmalloc", kmem("kmalloc")?)?,
            kmalloc_node: optional("kmalloc_node")?,
            cache_alloc: size_at("kmem_cache_alloc", kmem("kmem_cache_alloc")?)?,
            cache_alloc_node: optional("kmem_cache_alloc_node")?,
            percpu_has_caller: arguments(&btf, percpu)
                .map(|arguments| percpu_has_caller(&arguments).ok_or(TracepointError::Unknown(percpu)))
                .transpose()?,
            bulk_alloc: function(&["kmem_cache_alloc_bulk_noprof", "kmem_cache_alloc_bulk"]),
            bulk_free: function(&["kmem_cache_free_bulk"]),
            sheaf_free: function(&["__kfree_rcu_sheaf"]),
            page_descriptor_bytes: btf
                .type_by_name::<Struct<'_>>("page")
                .and_then(|page| u32::try_from(page.size()).ok())
                .unwrap_or(0),
        })
    }

    /// Returns whether the per-CPU allocator can be traced.
    pub fn has_percpu(&self) -> bool {
        self.percpu_has_caller.is_some()
    }
}

/// Name of a required tracepoint, for the error.
struct Missing {
    group: &'static str,
    name: &'static str,
}

impl Missing {
    fn unless<T>(self, found: Option<T>) -> Result<T, TracepointError> {
        let Self { group, name } = self;
        found.ok_or(TracepointError::Missing { group, name })
    }
}

/// Argument types of a tracepoint as programs get them; `None` if the kernel does not have it.
fn arguments(btf: &Btf<'_>, tracepoint: &str) -> Option<Vec<Argument>> {
    let function: Typedef<'_> = btf.type_by_name(&format!("btf_trace_{tracepoint}"))?;
    let pointer = Ptr::try_from(function.referenced_type()).ok()?;
    let prototype = FuncProto::try_from(pointer.referenced_type()).ok()?;
    // The first one is the tracepoint's private data.
    let types = prototype.iter().skip(1);
    Some(
        types
            .map(|parameter| btf.type_by_id(parameter.ty).map_or(Argument::Other, kind_of))
            .collect(),
    )
}

fn kind_of(argument: BtfType<'_>) -> Argument {
    if argument.name().is_some_and(|name| name == "size_t") {
        return Argument::Size;
    }
    let Ok(pointer) = Ptr::try_from(argument) else {
        return Argument::Other;
    };
    let target = pointer.referenced_type().skip_mods_and_typedefs();
    match target.name().is_some_and(|name| name == "kmem_cache") {
        true => Argument::Cache,
        false => Argument::Pointer,
    }
}

#[cfg(test)]
mod tests {
    use super::Argument::{Cache, Other, Pointer, Size};
    use super::*;

    /// The requested size is found in every layout that slab tracepoints have had.
    #[test]
    fn slab_sizes_of_all_layouts() {
        for (layout, arguments, expected) in [
            (
                "until 5.16",
                &[Other, Pointer, Size, Size, Other][..],
                Some(SizeAt::Argument(2)),
            ),
            (
                "until 6.0",
                &[Other, Pointer, Cache, Size, Size, Other],
                Some(SizeAt::Argument(3)),
            ),
            (
                "_node, until 6.0",
                &[Other, Pointer, Cache, Size, Size, Other, Other],
                Some(SizeAt::Argument(3)),
            ),
            (
                "kmalloc since 6.1",
                &[Other, Pointer, Size, Size, Other, Other],
                Some(SizeAt::Argument(2)),
            ),
            (
                "kmem_cache_alloc since 6.1",
                &[Other, Pointer, Cache, Other, Other],
                Some(SizeAt::Cache),
            ),
            ("no size", &[Other, Pointer, Other], None),
            ("another order", &[Size, Pointer, Other], None),
        ] {
            assert_eq!(SizeAt::of(arguments), expected, "{layout}");
        }
    }

    /// Size and address are found in the per-CPU layouts with and without the caller in front.
    #[test]
    fn percpu_layouts() {
        let since_5_19 = [
            Other, Other, Other, Size, Size, Pointer, Other, Pointer, Size, Other,
        ];
        let before = [Other, Other, Size, Size, Pointer, Other, Pointer];
        assert_eq!(percpu_has_caller(&since_5_19), Some(true));
        assert_eq!(percpu_has_caller(&before), Some(false));
        assert_eq!(percpu_has_caller(&[Size, Pointer]), None);
    }

    /// The running kernel's layouts are known.
    #[test]
    fn tracepoints_of_this_kernel_are_parsed() {
        let events = KernelEvents::read().expect("the kernel has BTF and its allocators' tracepoints");
        assert!(events.page_descriptor_bytes >= 32, "{events:?}");
    }
}
