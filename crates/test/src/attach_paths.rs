//! Ways to attach that the kernel is expected to have.

/// Ways to attach, the cheapest first.
pub const ALL: [&str; 3] = ["session", "multi", "perf"];

/// Ways of [`ALL`] that `KERNEL_WAYS` names, as `tests/kernels.sh` sets it for older kernels; all, if it is
/// not set or empty.
#[track_caller]
pub fn attach_paths() -> Vec<&'static str> {
    let named = std::env::var("KERNEL_WAYS").unwrap_or_default();
    if named.is_empty() {
        return ALL.to_vec();
    }
    let known = |name| {
        let path = ALL.into_iter().find(|path| *path == name);
        path.unwrap_or_else(|| panic!("KERNEL_WAYS={named}: {name} is none of {ALL:?}"))
    };
    named.split(',').map(known).collect()
}
