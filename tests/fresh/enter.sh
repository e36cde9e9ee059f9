#!/bin/sh
# Makes a directory this process's root, with the mounts of a machine that was just started, and runs a
# command in the clone there. Called by tests/fresh.sh in a new mount namespace.
#
# usage: tests/fresh/enter.sh ROOT COMMAND…    ROOT.shared has what of this machine is seen there: FROM TO ro|rw
set -eu
root=$1
shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tracefs tracefs "$root/sys/kernel/tracing"
# Controllers are in the same hierarchies as on this machine.
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount -t devtmpfs devtmpfs "$root/dev" || mount --bind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
# From Debian 13 on, /tmp is in memory.
[ "${root##*/}" = bookworm ] || mount -t tmpfs tmpfs "$root/tmp"
while read -r from to how; do
    mkdir -p "$root$to"
    mount --bind "$from" "$root$to"
    mount -o "remount,bind,$how" "$root$to"
done <"$root.shared"
cp /etc/resolv.conf /etc/hosts "$root/etc"
cd "$root"
pivot_root . .
umount -l .
cd /root/memleak
# Of this machine's environment, keep settings of the network, CARGO_INCREMENTAL and TERM alone.
for name in http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY \
    CARGO_INCREMENTAL TERM; do
    eval "value=\${$name-}"
    [ -z "$value" ] || set -- "$name=$value" "$@"
done
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
