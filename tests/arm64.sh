#!/bin/sh
# Runs a command of cargo's that builds for arm64 on another machine: with Debian's cross compiler, and libelf and zlib of
# Debian's packages for arm64, as data. What is built needs no library but glibc's (2.34 or newer).
#
# usage: tests/arm64.sh SUBCOMMAND ARGUMENT…    as of cargo; e.g. tests/arm64.sh build --release --locked
set -eu
here=$(realpath "$(dirname "$0")")
# shellcheck source=tests/debian.sh
. "$here/debian.sh"
target=aarch64-unknown-linux-gnu
libraries=$(realpath -m "${CARGO_TARGET_DIR:-$here/../target}")/$target/libraries

# $libraries/root, fetched once.
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
# Not of what build scripts are made of, which is for this machine.
export CFLAGS_aarch64_unknown_linux_gnu="-I$usr/include -I$usr/include/aarch64-linux-gnu"
export LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu="$usr/lib/aarch64-linux-gnu"
exec cargo "$subcommand" --target "$target" --features static "$@"
