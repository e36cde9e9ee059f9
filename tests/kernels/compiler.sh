#!/bin/sh
# gcc and g++ for tests that run on other kernels, where there is no compiler. Called by these names: with
# RECORD_WITH it calls the compiler in that directory and keeps its output; without, it returns the output
# that was kept for exactly the same arguments.
#
# KEPT_PROGRAMS: where programs are kept; what was recorded for other machines is in directories within
# CROSS_TMP: with RECORD_WITH, tests' own directory (THIS:OTHER) here and there: a cross compiler compiles for arm64 too
set -eu
name=${0##*/}

# Sets `output` to the file that ARGUMENTS make, and `key` to its name among kept ones.
find_output() {
    output=
    previous=
    for argument in "$@"; do
        [ "$previous" != -o ] || output=$argument
        previous=$argument
    done
    [ -n "$output" ] || { echo "$name: -o is needed, to keep what it names" >&2; exit 1; }
    key=$(printf '%s\n' "$name" "$@" | sha256sum | cut -c 1-32)
}

# Keeps the output below DIRECTORY; under a temporary name first, as tests run in parallel.
keep() {
    mkdir -p "$1"
    cp "$output" "$1/$key.$$"
    mv "$1/$key.$$" "$1/$key"
}

# Records what tests on arm64 will ask for: without and with signed return addresses. Not everything compiles
# for it.
record_for_arm64() {
    for argument in "$@"; do
        shift
        set -- "$@" "$(printf '%s' "$argument" | sed "s|${CROSS_TMP%:*}/|${CROSS_TMP#*:}/|")"
    done
    find_output "$@"
    mkdir -p "${output%/*}"
    if aarch64-linux-gnu-"$name" "$@" 2>/dev/null; then
        keep "$KEPT_PROGRAMS/arm64"
        aarch64-linux-gnu-"$name" -mbranch-protection=standard "$@"
        keep "$KEPT_PROGRAMS/arm64-signed"
    fi
}

find_output "$@"
if [ -n "${RECORD_WITH-}" ]; then
    "$RECORD_WITH/$name" "$@"
    keep "$KEPT_PROGRAMS/amd64"
    [ -z "${CROSS_TMP-}" ] || record_for_arm64 "$@"
elif [ -e "$KEPT_PROGRAMS/$key" ]; then
    cp "$KEPT_PROGRAMS/$key" "$output"
else
    echo "$name: not kept: $*" >&2
    exit 1
fi
