#!/bin/sh
# Compares the unwind tables of Debian's arm64 packages with gimli's evaluation of their CFI. The packages are
# data: they are downloaded with separate settings of apt, unpacked, and not installed. Two releases: newer
# code signs return addresses.
#
# usage: tests/verify_arm64.sh MEMLEAK DIRECTORY
set -eu
# shellcheck source=tests/debian.sh
. "$(dirname "$0")/debian.sh"
memleak=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd)

# Small and large, C and C++, allocators, interpreters, hand-written assembly.
common='bash coreutils gdb git libc6 libcrypto++8 libgcc-s1 libgcrypt20 libglib2.0-0 libjemalloc2 libopenblas0-pthread
libsqlite3-0 libssl3 libstdc++6 libtcmalloc-minimal4 musl perl-base redis-server ruby'
bookworm="$common libavcodec59 libicu72 libllvm14 libnode108 libpython3.11 libqt5core5a libruby3.1"
trixie="$common libglib2.0-0t64 libicu76 libllvm19 libpython3.13 libssl3t64 libtcmalloc-minimal4t64"

# Fetches and unpacks the packages of a release; those that it does not have are left to the other.
fetch() {
    release=$1
    shift
    here=$directory/$release
    [ ! -e "$here/complete" ] || return 0
    debian_prepare "$here" arm64 "$release"
    for package in "$@"; do
        ! debian_has "$here" "$package" || debian_unpack "$here" "$package"
    done
    debian_forget "$here"
    touch "$here/complete"
}

# shellcheck disable=SC2086 # lists of names
fetch bookworm $bookworm
# shellcheck disable=SC2086
fetch trixie $trixie
for release in bookworm trixie; do
    echo "==> $release"
    "$memleak" table --verify "$directory/$release/root"
done
