#!/bin/sh
# Tries the newest kernel that Debian has with the core checks. Where the tools to boot it are not installed,
# or the kernel cannot be fetched, a line says so, and nothing fails. A part of CI, so that no user is the
# first to try a new kernel.
#
# KERNEL_CACHE: where the kernel is kept between clean clones, if not in ~/.cache/memleak
set -eu
cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cache=${KERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memleak/kernels}/newest
kept=$target/kernels/newest

not_tried() {
    echo "==> the newest kernel was not tried: $1"
    exit 0
}

for program in /bin/busybox cpio qemu-system-x86_64; do
    command -v "$program" >/dev/null || not_tried "$program is missing: tests/setup.sh kernels newest"
done
# Checks that cover the kernel's verifier, each way to attach, stacks, amounts, and more threads than
# processors.
export CHECKS='^doctor|leaker_by|leaks::every_function$|stacks_of_all_kinds'
mkdir -p "$cache" "$target/kernels"
[ -e "$kept" ] || cp -r "$cache" "$kept"
status=0
tests/kernels.sh own newest || status=$?
# 4: packages could not be read.
[ $status != 4 ] || not_tried "Debian's packages cannot be read"
[ ! -e "$kept/complete" ] || cp "$kept/complete" "$kept/vmlinuz" "$cache"
exit $status
