#!/bin/sh
# Runs the core of the live tests on this machine's own kernel, which compiles what they trace, and on Debian's: boots each
# under qemu, by software emulation, without a network or a disk, with an initramfs that holds memleak, compiled tests and
# what they need. As root; some minutes.
#
# usage: tests/kernels.sh [own|6.1|6.12]…    all without arguments; without `own`, with the programs of an earlier run
#
# KERNEL_WAYS: the ways to attach that this machine's own kernel has, if not all
# DEBIAN_MIRROR: where packages come from, if not deb.debian.org; they stay in target/kernels
set -eu
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/kernels
# A boot that takes longer hangs.
most_seconds=1500

die() {
    echo "error: $*" >&2
    exit 1
}

suite_of() {
    case $1 in
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    *) die "no kernel $1 here: 6.1 (Debian 12) and 6.12 (Debian 13)" ;;
    esac
}

# Since when each is there: uprobe_multi 6.6, session 6.13.
ways_of() {
    case $1 in
    6.1) echo perf ;;
    6.12) echo multi,perf ;;
    esac
}

# apt, with settings, lists and files of its own.
apt_for() {
    directory=$1
    shift
    program=$1
    shift
    "$program" -q -o Dir::Etc::sourcelist="$directory/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$directory/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$directory/cache" \
        -o APT::Architecture=amd64 -o Acquire::Languages=none -o APT::Sandbox::User=root "$@"
}

# $work/KERNEL/vmlinuz: the newest that Debian has, fetched once.
fetch_kernel() {
    directory=$work/$1
    [ ! -e "$directory/vmlinuz" ] || return 0
    mkdir -p "$directory/lists/partial" "$directory/cache/archives/partial"
    echo "deb [signed-by=$keyring] $mirror $(suite_of "$1") main" >"$directory/sources.list"
    apt_for "$directory" apt-get update >"$directory/apt.log" 2>&1 || die "apt-get update: see $directory/apt.log"
    package=$(apt_for "$directory" apt-cache depends linux-image-amd64 |
        sed -n 's/.*Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
    [ -n "$package" ] || die "linux-image-amd64 of $(suite_of "$1") depends on no kernel"
    echo "==> fetching $package"
    (cd "$directory" && apt_for "$directory" apt-get download "$package" >>apt.log 2>&1) ||
        die "apt-get download $package: see $directory/apt.log"
    dpkg-deb --fsys-tarfile "$directory/$package"_*.deb | tar -C "$directory" -x --strip-components=2 --wildcards './boot/vmlinuz-*'
    mv "$directory"/vmlinuz-* "$directory/vmlinuz"
    rm -r "$directory/lists" "$directory/cache" "$directory/$package"_*.deb
}

# What tests/kernels/NAME.checks names, or all of them do.
checks() {
    # shellcheck disable=SC2086
    grep -h -v '^#' tests/kernels/$1.checks
}

# The tests, and memleak, as `make test` builds them.
build() {
    names=$(checks '*' | awk '{ print $2 }' | sort -u)
    # shellcheck disable=SC2046,SC2086
    cargo test --locked --no-run $(printf -- '--test %s ' $names) --message-format=json >"$work/built.json"
    for name in $names; do
        binary=$(sed -n 's/.*"name":"'"$name"'".*"executable":"\([^"]*\)".*/\1/p' "$work/built.json")
        [ -n "$binary" ] || die "no test $name was built"
        ln -sf "$binary" "$work/tests/$name"
    done
}

# Runs what `checks` names on this machine. Programs that are compiled meanwhile are kept.
run_here() {
    for name in gcc g++; do
        cp tests/kernels/compiler.sh "$work/compilers/$name"
        chmod 755 "$work/compilers/$name"
    done
    rm -f "$work"/programs/*
    compiler=$(dirname "$(command -v gcc)")
    results=$work/own.results
    echo "@booted $(uname -r) 0" >"$results"
    checks core | while read -r what binary name way; do
        is_wanted "$way" "${KERNEL_WAYS-}" || continue
        began=$(cut -d ' ' -f 1 /proc/uptime)
        result=failed
        if PATH=$work/compilers:$PATH RECORD_WITH=$compiler KEPT_PROGRAMS=$work/programs \
            "$work/tests/$binary" --exact "$name" >"$work/said" 2>&1 </dev/null &&
            grep -q '^test result: ok. 1 passed' "$work/said"; then
            result=ok
        else
            sed "s/^/$name: /" "$work/said"
        fi
        echo "@check $result $what $name $began $(cut -d ' ' -f 1 /proc/uptime)"
    done >>"$results"
    echo "@end" >>"$results"
}

# Of a check for one way to attach: whether it is among those given, or all are.
is_wanted() {
    [ -z "$1" ] || [ -z "$2" ] && return 0
    case ,$2, in *,"$1",*) return 0 ;; esac
    return 1
}

# A file as it is, with the libraries it needs, at its own path below $root.
add() {
    for file in "$@"; do
        mkdir -p "$root${file%/*}"
        cp -L "$file" "$root$file"
        ldd "$file" 2>/dev/null | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
            [ ! -e "$root$library" ] || continue
            mkdir -p "$root${library%/*}"
            cp -L "$library" "$root$library"
            add_names "$library"
        done
    done
}

# Debug symbols of a library, where Debian has them.
add_names() {
    id=$(readelf -n "$1" | sed -n 's/.*Build ID: //p')
    names=/usr/lib/debug/.build-id/$(echo "$id" | cut -c 1-2)/$(echo "$id" | cut -c 3-).debug
    [ ! -e "$names" ] || { mkdir -p "$root${names%/*}" && cp "$names" "$root$names"; }
}

# What is alike for all kernels.
make_root() {
    root=$(mktemp -d "$work/root.XXXXXX")
    trap 'rm -rf "$root" "$root.cpio"' EXIT
    trap 'exit 1' HUP INT TERM
    # It becomes `/`, which is everybody's.
    chmod 755 "$root"
    mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/tests" "$root/compilers" "$root/etc" \
        "$root/programs" "$root/root" "$root/var/tmp"
    cp /bin/busybox "$root/bin/busybox"
    for applet in $(/bin/busybox --list); do
        [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
    done
    cp tests/kernels/init "$root/init"
    chmod 755 "$root/init"
    # Users as tests know them.
    printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
    rm "$root/bin/kill" "$root/bin/setpriv"
    add /bin/kill /usr/bin/setpriv "$target/debug/memleak"
    strip -g "$root$target/debug/memleak"
    for link in "$work"/tests/*; do
        binary=$(readlink "$link")
        add "$binary"
        strip -g -o "$root/tests/${link##*/}" "$root$binary"
        rm "$root$binary"
    done
    cp "$work"/compilers/* "$root/compilers"
    for program in "$work"/programs/*; do
        add "$program"
        mv "$root$program" "$root/programs"
    done
}

# Boots KERNEL with CHECKS, further arguments of the kernel's and variables of the tests; results are in
# $work/NAME.results.
boot() {
    name=$1 kernel=$2 list=$3 append=$4 variables=$5
    ways=$(ways_of "$kernel")
    checks "$list" | while read -r what binary check way; do
        ! is_wanted "$way" "$ways" || echo "$what $binary $check"
    done >"$root/checks"
    # Settings that are in no one's way who has the capabilities.
    cat >"$root/environment" <<END
export KERNEL_WAYS=$ways KEPT_PROGRAMS=/programs MEMLEAK_SHORT_LOAD=1 $variables
echo 3 >/proc/sys/kernel/perf_event_paranoid
echo 2 >/proc/sys/kernel/unprivileged_bpf_disabled
END
    (cd "$root" && find . | cpio --quiet -o -H newc) >"$root.cpio"
    rm -f "$work/$name.results"
    timeout --foreground "$most_seconds" qemu-system-x86_64 -accel tcg -cpu max -m 3072 -smp 2 -display none -nodefaults -no-reboot \
        -kernel "$work/$kernel/vmlinuz" -initrd "$root.cpio" -append "console=ttyS0 quiet panic=1 mitigations=off $append" \
        -serial "file:$work/$name.console" -serial "file:$work/$name.results" ||
        echo "qemu ended with status $?; see $work/$name.console" >>"$work/$name.results"
}

# Says what came of each check of NAME. Fails unless all ran, and were right.
summarize() {
    name=$1 version=$2 expected=$3
    awk -v name="$name" -v version="$version" -v expected="$expected" '
        { sub(/\r$/, "") }
        $1 == "@booted" { release = $2; printf "%s: Linux %s, booted in %d s\n", name, release, $3; next }
        $1 == "@check" {
            printf "    %-6s %6.1f s  %-11s %s\n", $2, $6 - $5, $3, $4
            if ($2 == "ok") ok++; else failed++
            next
        }
        $1 == "@end" { ended = 1; next }
        { said = said "        " $0 "\n" }
        END {
            if (said != "") printf "%s", said
            if (index(release, version) != 1) { wrong = ", not Linux " version }
            if (!ended) wrong = wrong ", did not come to its end"
            if (ok != expected) wrong = wrong ", " expected " expected"
            printf "%s: %d ok, %d failed%s\n", name, ok, failed, wrong
            exit wrong != "" || failed
        }' "$work/$name.results"
}

expected_checks() {
    checks "$1" | { count=0; while read -r _ _ _ way; do ! is_wanted "$way" "$2" || count=$((count + 1)); done; echo $count; }
}

[ "$(id -u)" = 0 ] || die "root is needed: the tests trace processes"
for program in qemu-system-x86_64 /bin/busybox cpio; do
    command -v $program >/dev/null || die "$program is missing: tests/setup.sh kernels"
done
[ $# -gt 0 ] || set -- own 6.1 6.12
mkdir -p "$work/tests" "$work/compilers" "$work/programs"
for kernel in "$@"; do
    [ "$kernel" = own ] || fetch_kernel "$kernel"
done
build
root=
status=0
for kernel in "$@"; do
    if [ "$kernel" = own ]; then
        run_here
        summarize own "$(uname -r)" "$(expected_checks core "${KERNEL_WAYS-}")" || status=1
        continue
    fi
    [ -n "$root" ] || make_root
    boot "$kernel" "$kernel" core '' ''
    summarize "$kernel" "$kernel." "$(expected_checks core "$(ways_of "$kernel")")" || status=1
    name="$kernel-locked"
    boot "$name" "$kernel" locked lockdown=confidentiality KERNEL_LOCKDOWN=confidentiality
    summarize "$name" "$kernel." "$(expected_checks locked '')" || status=1
done
exit $status
