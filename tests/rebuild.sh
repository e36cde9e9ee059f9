#!/bin/sh
# Checks that a second build compiles nothing, not even after files were touched that belong to no crate, and
# that the kernel side and the library are compiled again when one of their files has changed.
#
# usage: tests/rebuild.sh CARGO-COMMAND…    what was built: cargo test --no-run …
set -eu
cd "$(dirname "$0")/.."

# Prints what cargo says that it compiles.
compiled() {
    "$@" 2>&1 | grep -E '^ *(Compiling|Dirty|error)' || true
}

none() {
    reason=$1
    shift
    again=$(compiled "$@")
    [ -z "$again" ] || {
        echo "error: compiled again $reason:" >&2
        echo "$again" >&2
        exit 1
    }
}

none 'without any change' "$@"
touch README.md CHANGELOG.md Makefile docs/live.md tests/step.sh
none 'after files that no crate is made of were touched' "$@"

# The build script tells cargo to run it again after a change of any file of the kernel side or of the
# library, and of no others.
last=$(find "${CARGO_TARGET_DIR:-target}" -regex '.*/build/memleak-[0-9a-f]*/output' -exec ls -t {} + | head -n 1)
said=$(grep '^cargo::rerun-if' "$last" | sort)
expected='cargo::rerun-if-changed=bpf
cargo::rerun-if-changed=crates/memleak-alloc/src
cargo::rerun-if-env-changed=CLANG'
[ "$said" = "$expected" ] || {
    echo "error: the build script asks to be run again for other things than bpf/, crates/memleak-alloc/src and CLANG:" >&2
    echo "$said" >&2
    exit 1
}
