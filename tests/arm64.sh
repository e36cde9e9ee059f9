#!/bin/sh
# Runs a cargo command that builds for arm64 on another machine: with Debian's cross compiler, and with libelf
# and zlib from Debian's arm64 packages, which are unpacked, not installed. The result needs no library but
# glibc (2.34 or newer).
#
# usage: tests/arm64.sh SUBCOMMAND ARGUMENT…    as of cargo; e.g. tests/arm64.sh build --release --locked
set -eu
here=$(realpath "$(dirname "$0")")
# shellcheck source=tests/debian.sh
. "$here/debian.sh"
target=aarch64-unknown-linux-gnu
libraries=$(realpath -m "${CARGO_TARGET_DIR:-$here/../target}")/$target/libraries

# Fetches $libraries/root, once.
fetch_libraries() {
    [ ! -e "$libraries/complete" ] || return 0
    debian_prepare "$libraries" arm64 bookworm
    debian_unpack "$libraries" libelf-dev zlib1g-dev
    debian_forget "$libraries"
    touch "$libraries/complete"
}

subcommand=$1
shift
fetch_libraries
usr=$libraries/root/usr
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# For the target only: build scripts are compiled for this machine.
export CFLAGS_aarch64_unknown_linux_gnu="-I$usr/include -I$usr/include/aarch64-linux-gnu"
export LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu="$usr/lib/aarch64-linux-gnu"
exec cargo "$subcommand" --target "$target" --features static "$@"
