#!/bin/sh
# Shows that packages of tests/setup.sh are enough for what tests compile, in new systems (tests/fresh.sh), unless that was shown
# for what is needed now: lists of packages, scripts, and the programs, headers and libraries that sources name.
#
# usage: tests/fresh/needed.sh RELEASE…
#
# FRESH_CACHE: where it is kept for what it was shown, as of tests/fresh.sh
set -eu
cd "$(dirname "$0")/../.."
shown=${FRESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memleak}/shown

needs() {
    git ls-files -s -- '*.sh' Makefile build.rs Cargo.lock
    git ls-files -z -- '*.rs' '*.c' '*.cpp' '*.h' '*.go' '*.py' '*.s' '*.S' |
        xargs -0 grep -h -o -E \
            'Command::new\("[^"]*"|stock\("[^"]*"|#include <[^>]*>|"-l[a-z+]+"|^(import|from) [a-z_0-9.]+' |
        sort -u
}

# Whether a directory can be made the root of a mount namespace here.
can_enter() {
    directory=$(mktemp -d)
    status=0
    unshare --mount --propagation private sh -c 'mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir old && pivot_root . old' \
        sh "$directory" || status=$?
    rmdir "$directory"
    return $status
}

if ! can_enter; then
    echo "==> not shown that packages are enough: no new system can be entered on this machine"
    exit
fi
needed=$(needs | sha256sum | cut -c 1-32)
mkdir -p "$shown"
for release in "$@"; do
    if [ -e "$shown/$release-$needed" ]; then
        echo "==> $release: packages were shown to be enough for what is needed now"
        continue
    fi
    make --no-print-directory test-fresh STEPS='setup compile' RELEASES="$release"
    rm -f "$shown/$release"-*
    touch "$shown/$release-$needed"
done
