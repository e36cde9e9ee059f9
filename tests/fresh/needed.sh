#!/bin/sh
# Checks, in new systems (tests/fresh.sh), that the packages of tests/setup.sh are enough for what tests
# compile. Skipped if that was shown before for the same needs: lists of packages, scripts, and the programs,
# headers and libraries that sources name.
#
# usage: tests/fresh/needed.sh [--one] RELEASE…    --one: ends after the first system that had to be made
#
# FRESH_CACHE: where it is kept for what it was shown, as of tests/fresh.sh
set -eu
cd "$(dirname "$0")/../.."
shown=${FRESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memleak}/shown

# Comments and other machines' scripts need nothing.
needs() {
    git ls-files -s -- Cargo.lock
    git ls-files -z -- '*.sh' Makefile build.rs ':!tests/kernels*' ':!tests/fuzz' ':!tests/*arm64.sh' ':!tests/deny.sh' |
        xargs -0 grep -h -v -E '^[[:space:]]*(#|//|@echo|$)'
    git ls-files -z -- '*.rs' '*.c' '*.cpp' '*.h' '*.go' '*.py' '*.s' '*.S' |
        xargs -0 grep -h -o -E \
            'Command::new\("[^"]*"|stock\("[^"]*"|#include <[^>]*>|"-l[a-z+]+"|^(import|from) [a-z_0-9.]+' |
        sort -u
}

# True if a directory can be made the root of a mount namespace here.
can_enter() {
    directory=$(mktemp -d)
    status=0
    unshare --mount --propagation private sh -c 'mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir old && pivot_root . old' \
        sh "$directory" || status=$?
    rmdir "$directory"
    return $status
}

# Ends with a note, and without failing, where no new system can be made.
not_shown() {
    echo "==> skipped the check that packages are enough: no new system can be $1 on this machine"
    exit 0
}

one=
[ "$1" != --one ] || { one=yes && shift; }
needed=$(needs | sha256sum | cut -c 1-32)
mkdir -p "$shown"
for release in "$@"; do
    if [ -e "$shown/$release-$needed" ]; then
        echo "==> $release: packages were shown to be enough for what is needed now"
        continue
    fi
    can_enter || not_shown entered
    tests/setup.sh fresh || not_shown made
    status=0
    STEPS='setup compile' tests/step.sh test-fresh tests/fresh.sh "$release" || status=$?
    [ $status != 3 ] || not_shown made
    [ $status = 0 ] || exit $status
    rm -f "$shown/$release"-*
    touch "$shown/$release-$needed"
    [ -z "$one" ] || break
done
