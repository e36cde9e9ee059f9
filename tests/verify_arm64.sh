#!/bin/sh
# Compares the unwind tables of Debian's arm64 packages with gimli's evaluation of their CFI. The packages are data: they
# are downloaded with settings of their own, unpacked, and not installed. Two releases: newer code signs return addresses.
#
# usage: tests/verify_arm64.sh MEMLEAK DIRECTORY
set -eu
memleak=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd)

# Small and large, C and C++, allocators, interpreters, hand-written assembly.
common='bash coreutils gdb git libc6 libcrypto++8 libgcc-s1 libgcrypt20 libglib2.0-0 libjemalloc2 libopenblas0-pthread
libsqlite3-0 libssl3 libstdc++6 libtcmalloc-minimal4 musl perl-base redis-server ruby'
bookworm="$common libavcodec59 libicu72 libllvm14 libnode108 libpython3.11 libqt5core5a libruby3.1"
trixie="$common libglib2.0-0t64 libicu76 libllvm19 libpython3.13 libssl3t64 libtcmalloc-minimal4t64"

# Settings for the packages of one release, and what they are about.
prepare() {
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$1/packages" "$1/root"
    : >"$1/status"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $2 main" >"$1/sources.list"
    cat >"$1/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$1";
Dir::State::status "$1/status";
Dir::Cache "$1/cache";
Dir::Etc::sourcelist "$1/sources.list";
Dir::Etc::sourceparts "-";
END
}

# The packages of a release, unpacked; of those that it does not have, others do.
fetch() {
    release=$1
    shift
    here=$directory/$release
    [ ! -e "$here/complete" ] || return 0
    prepare "$here" "$release"
    export APT_CONFIG="$here/apt.conf"
    apt-get update -qq
    for package in "$@"; do
        apt-cache policy "$package" | grep -q 'Candidate: [0-9]' || continue
        (cd "$here/packages" && apt-get download -qq "$package")
    done
    for package in "$here/packages"/*.deb; do
        dpkg-deb -x "$package" "$here/root"
    done
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
