#!/bin/sh
# Checks that a build of what is built compiles nothing, also when files have been touched that no crate is made of, and
# that the kernel side and the library are compiled again when one of their files has changed.
#
# usage: tests/rebuild.sh CARGO-COMMAND…    what was built: cargo test --no-run …
set -eu
cd "$(dirname "$0")/.."

# What cargo says that it compiles.
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

# By what its build script has said, cargo runs it after a change of any file of the kernel side or of the library, and not
# for others.
last=$(find "${CARGO_TARGET_DIR:-target}" -path '*/build/memleak-*/output' -exec ls -t {} + | head -n 1)
said=$(grep '^cargo::rerun-if' "$last" | sort)
expected='cargo::rerun-if-changed=bpf
cargo::rerun-if-changed=memleak-alloc/src
cargo::rerun-if-env-changed=CLANG'
[ "$said" = "$expected" ] || {
    echo "error: the build script asks to be run again for other things than bpf/, memleak-alloc/src and CLANG:" >&2
    echo "$said" >&2
    exit 1
}
