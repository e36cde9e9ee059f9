#!/bin/sh
# Fuzzes, one target after another. Inputs that break a claim are in target/fuzz/artifacts, and are tried again by
#     target/fuzz/x86_64-unknown-linux-gnu/release/TARGET FILE
#
# usage: tests/fuzz/run.sh MINUTES [TARGET…]    minutes for each target; all of them, if none is named
set -eu
cd "$(dirname "$0")/../.."
minutes=$1
shift
command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
# Sanitizers are not stable in Rust: RUSTC_BOOTSTRAP allows them, and the code is compiled as it is.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/fuzz"
cargo fuzz build --fuzz-dir tests/fuzz
corpus=$CARGO_TARGET_DIR/corpus
tests/fuzz/corpus.sh "$corpus"
[ $# -gt 0 ] || set -- $(cargo fuzz list --fuzz-dir tests/fuzz)
failed=
for target; do
    case $target in
    elf | symbols | allocators | python_builds) longest=24576 ;;
    recording) longest=16384 ;;
    *) longest=4096 ;;
    esac
    found=$CARGO_TARGET_DIR/artifacts/$target
    mkdir -p "$found"
    echo "==> fuzz $target, $minutes min"
    # A new process for each few thousand inputs: one that breaks a claim ends only that process.
    "$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/$target" "$corpus/$target" -fork=1 \
        -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1 -artifact_prefix="$found/" -max_total_time=$((60 * minutes)) \
        -max_len="$longest" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1100 2>&1 |
        grep --line-buffered -aE '^#|panicked|ERROR' | tail -n 5
    [ -z "$(ls "$found")" ] || failed="$failed $target"
done
[ -z "$failed" ] || {
    echo "error: claims were broken, see $CARGO_TARGET_DIR/artifacts:$failed" >&2
    exit 1
}
