#!/bin/sh
# Runs a test binary, as cargo's runner, and says which of its tests took longest.
#
# usage: tests/slowest.sh EXECUTABLE ARGUMENT…
set -u
said=$(mktemp)
trap 'rm -f "$said"' EXIT
trap 'exit 130' HUP INT TERM
# A stable libtest says durations only if it is asked as a nightly one is.
{
    RUSTC_BOOTSTRAP=1 "$@" -Zunstable-options --report-time
    echo "@status $?"
} | tee "$said" | grep --line-buffered -v '^@status '
slowest=$(sed -n 's/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>$/\2 \1/p' "$said" | sort -rn | head -n 10)
[ -z "$slowest" ] || printf 'slowest, in seconds:\n%s\n\n' "$slowest"
status=$(sed -n 's/^@status //p' "$said")
exit "${status:-1}"
