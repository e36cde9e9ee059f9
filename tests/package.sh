#!/bin/sh
# Packs a memleak that needs no libraries: a tar archive, a Debian package, and their checksums. Neither holds more than
# the program, libmemleak.so, pages of the manual, completions, licences and what deploy/ has as examples. `make dist` builds the program and calls this.
#
# usage: tests/package.sh MEMLEAK DIRECTORY [arm64 WRITER]
#   arm64 WRITER           MEMLEAK is for arm64, and this one of the same version runs here
#   PACKAGE_COMPRESSION    0 to 9, as of xz (6)
#   SOURCE_DATE_EPOCH      the time of all files; without it, that of the last commit or, without a history, of CHANGELOG.md
set -eu
umask 022
export LC_ALL=C

die() {
    echo "error: $*" >&2
    exit 1
}

case $#,${3-} in
2,) machine=amd64 processor=x86_64 tools='' writer=$1 ;;
4,arm64) machine=arm64 processor=aarch64 tools=aarch64-linux-gnu- writer=$4 ;;
*) die "usage: tests/package.sh MEMLEAK DIRECTORY [arm64 WRITER]" ;;
esac
binary=$(realpath "$1")
writer=$(realpath "$writer")
mkdir -p "$2"
directory=$(realpath "$2")
cd "$(dirname "$0")/.."
maintainer='The memleak authors <memleak@packages.invalid>'
level=${PACKAGE_COMPRESSION-6}
version=$("$writer" --version | cut -d ' ' -f 2)
epoch=${SOURCE_DATE_EPOCH-$(git log -1 --format=%ct 2>/dev/null)} || true
[ -n "$epoch" ] || epoch=$(stat --format=%Y CHANGELOG.md)
export SOURCE_DATE_EPOCH="$epoch"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The libmemleak.so that was built for this program, and is a part of it: several builds can have left theirs.
library() {
    python3 - "$binary" "$(dirname "$binary")"/build/memleak-*/out/libmemleak.so <<'END'
import sys

program = open(sys.argv[1], "rb").read()
for path in sys.argv[2:]:
    if open(path, "rb").read() in program:
        print(path)
        sys.exit()
sys.exit("error: no libmemleak.so beside the program is the one in it")
END
}

# Adds the files that both have below $1: usr or the archive's own directory.
add_program() {
    mkdir -p "$1/bin" "$1/lib/memleak" "$1/share/man" "$1/share/doc/memleak" "$1/share/bash-completion/completions" \
        "$1/share/zsh/vendor-completions" "$1/share/fish/vendor_completions.d"
    "${tools}strip" -o "$1/bin/memleak" "$binary"
    cp "$(library)" "$1/lib/memleak/libmemleak.so"
    chmod 644 "$1/lib/memleak/libmemleak.so"
    "$writer" completions bash >"$1/share/bash-completion/completions/memleak"
    "$writer" completions zsh >"$1/share/zsh/vendor-completions/_memleak"
    "$writer" completions fish >"$1/share/fish/vendor_completions.d/memleak.fish"
    mkdir "$work/man"
    "$writer" man --output-dir "$work/man"
    for page in "$work"/man/*; do
        section=$1/share/man/man${page##*.}
        mkdir -p "$section"
        gzip -9n <"$page" >"$section/${page##*/}.gz"
    done
    rm -r "$work/man"
    cp README.md SECURITY.md "$1/share/doc/memleak/"
    mkdir "$1/share/doc/memleak/docs"
    cp -r docs/*.md docs/*.json docs/decisions "$1/share/doc/memleak/docs/"
    mkdir "$1/share/doc/memleak/docs/images"
    cp docs/images/*.png docs/images/*.svg "$1/share/doc/memleak/docs/images/"
    mkdir "$1/share/doc/memleak/examples"
    cp deploy/* "$1/share/doc/memleak/examples/"
    gzip -9n <CHANGELOG.md >"$1/share/doc/memleak/changelog.gz"
    {
        echo "memleak is licensed under the terms of either of the two licences at the end of this file. What is loaded"
        echo "into the kernel says its own licence in its source, which \`memleak --ebpf\` writes."
        echo
        tests/third_party.py "$processor-unknown-linux-gnu"
        for licence in LICENSE-MIT LICENSE-APACHE; do
            echo
            echo "================================================================================"
            echo "memleak $version ($licence)"
            echo "--------------------------------------------------------------------------------"
            cat $licence
        done
    } >"$1/share/doc/memleak/copyright"
}

# Adds a note about users without root; nothing is set up unless they ask for it.
add_debian_note() {
    cat >"$1/usr/share/doc/memleak/README.Debian" <<'END'
memleak traces as root: sudo memleak -p PID. To let the members of one group trace without it, give the program the
capabilities it needs, and to nobody else:

    addgroup --system memleak
    chgrp memleak /usr/bin/memleak
    chmod 750 /usr/bin/memleak
    setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep /usr/bin/memleak

Who may run it then can read the memory layout, and by that much of the secrets, of every process: it is nearly root.
Each installation of a new version takes the capabilities away again; `dpkg-statoverride` keeps group and mode:

    dpkg-statoverride --update --add root memleak 0750 /usr/bin/memleak

Some things need more in that list: cap_dac_read_search for files that their modes keep from the group, and for --mmap;
cap_checkpoint_restore for mapped files that were deleted or replaced (of other users' processes with cap_dac_read_search);
cap_sys_admin to attach at all before Linux 6.6. `memleak doctor` says what is missing, docs/permissions.md beside this file
has the whole list.
END
}

# Adds Debian's own changelog, beside the one of the program.
add_debian_changelog() {
    gzip -9n >"$1/usr/share/doc/memleak/changelog.Debian.gz" <<END
memleak ($version-1) unstable; urgency=medium

  * Version $version, see changelog.gz.

 -- $maintainer  $(date -u -R -d "@$epoch")
END
}

add_control() {
    mkdir "$1/DEBIAN"
    cat >"$1/DEBIAN/control" <<END
Package: memleak
Version: $version-1
Architecture: $machine
Maintainer: $maintainer
Section: devel
Priority: optional
Installed-Size: $(du -sk --apparent-size "$1/usr" | cut -f 1)
Suggests: libc6-dbg, libcap2-bin
Description: memory leak tracer with complete call stacks
 Finds memory leaks in running, unmodified processes: shows the call stacks
 whose allocations were never freed. Stacks are complete through code without
 frame pointers: unwind tables are compiled from each file's .eh_frame, and
 stacks are walked in the kernel. It needs a kernel with the BPF of Linux
 6.0 or newer, and root or the capabilities that README.Debian names.
END
    (cd "$1" && find usr -type f | sort | xargs md5sum) >"$1/DEBIAN/md5sums"
}

root=$work/root
mkdir "$root"
add_program "$root/usr"
add_debian_note "$root"
add_debian_changelog "$root"
add_control "$root"
dpkg-deb --root-owner-group -Zxz -z"$level" --build "$root" "$directory/memleak_$version-1_$machine.deb"

name=memleak-$version-$processor-linux
mv "$root/usr" "$work/$name"
rm "$work/$name"/share/doc/memleak/*Debian*
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$name" |
    xz -"$level" -T1 >"$directory/$name.tar.xz"
(cd "$directory" && sha256sum "memleak_$version-1_$machine.deb" "$name.tar.xz" >SHA256SUMS)
ls -l "$directory"
