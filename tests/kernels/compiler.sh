#!/bin/sh
# gcc and g++ of tests that run on other kernels, where there is no compiler. Called by these names:
# with RECORD_WITH it calls the compiler in that directory and keeps what it made; without, it gives what was kept for
# the very same arguments.
set -eu
name=${0##*/}
output=
previous=
for argument in "$@"; do
    [ "$previous" != -o ] || output=$argument
    previous=$argument
done
[ -n "$output" ] || { echo "$name: -o is needed, to keep what it names" >&2; exit 1; }
key=$(printf '%s\n' "$name" "$@" | sha256sum | cut -c 1-32)
kept=$KEPT_PROGRAMS/$key
if [ -n "${RECORD_WITH-}" ]; then
    "$RECORD_WITH/$name" "$@"
    # Under a name of its own first: tests run at once.
    cp "$output" "$kept.$$"
    mv "$kept.$$" "$kept"
elif [ -e "$kept" ]; then
    cp "$kept" "$output"
else
    echo "$name: not kept: $*" >&2
    exit 1
fi
