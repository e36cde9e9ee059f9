#!/bin/sh
# Runs the core of the live tests on this machine's own kernel, which compiles the traced programs, and on
# Debian's, for this machine and for arm64: boots each under qemu, by software emulation, without a network or
# a disk, with an initramfs of memleak, compiled tests and what they need. As root; some minutes for each.
#
# usage: tests/kernels.sh [KERNEL]…    own, SERIES or SERIES-arm64 of tests/kernels/list, SERIES-arm64-16k, newest, newest-arm64
#   own and all of the list without arguments; without `own`, with the programs of an earlier run, if it compiled what is traced now
#
# CHECKS: which checks are wanted, as a regular expression, if not all of tests/kernels/*.checks
# UPDATE: `budget` writes what verifiers counted to tests/kernels/budget.tsv
# KERNEL_WAYS: the ways to attach that this machine's own kernel has, if not all
# DEBIAN_MIRROR: where packages come from, if not deb.debian.org; they stay in target/kernels
set -eu
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/kernels
# shellcheck source=tests/kernels/kernels.sh
. tests/kernels/kernels.sh
# shellcheck source=tests/kernels/guest.sh disable=SC2154
. tests/kernels/guest.sh

die() {
    echo "error: $*" >&2
    exit 1
}

# Prints the checks of tests/kernels/NAME.checks, or of all for `*`, that are wanted.
checks() {
    # shellcheck disable=SC2086
    grep -h -v '^#' tests/kernels/$1.checks | { grep -E -e "${CHECKS:-.}" || true; }
}

# Builds the tests and memleak for MACHINE, by CARGO. As in `make test`, whose build is shared for this
# machine.
build() {
    machine=$1 cargo=$2
    names=$(CHECKS='' checks '*' | awk '{ print $2 }' | sort -u)
    rm -rf "$work/tests/$machine"
    mkdir -p "$work/tests/$machine"
    # Tests of the crate itself are a suite of its name.
    # shellcheck disable=SC2046,SC2086
    "$cargo" test --locked --no-run --lib $(printf -- '--test %s ' $names | sed 's/--test memleak //') --message-format=json >"$work/built.json"
    for name in $names; do
        binary=$(sed -n 's|.*"name":"'"$name"'".*"executable":"\([^"]*/deps/[^"]*\)".*|\1|p' "$work/built.json")
        [ -n "$binary" ] || die "no test $name was built"
        ln -s "$binary" "$work/tests/$machine/$name"
    done
}

# True if an earlier run kept the programs that the wanted checks trace, for each machine.
has_programs() {
    [ -e "$work/programs/checks" ] || return 1
    kept_for=$(cat "$work/programs/checks")
    [ -z "$kept_for" ] || [ "$kept_for" = "${CHECKS-}" ] || return 1
    [ -z "$for_arm64" ] || [ -d "$work/programs/arm64" ]
}

# Runs `checks` on this machine. Programs that are compiled meanwhile are kept, for arm64 as well if it is
# asked for.
run_here() {
    rm -rf "$work/programs"
    mkdir "$work/programs"
    cross=
    [ -z "$for_arm64" ] || cross=$target/tmp:$target/aarch64-unknown-linux-gnu/tmp
    compiler=$(dirname "$(command -v gcc)")
    results=$work/own.results
    echo "@booted $(uname -r) 0" >"$results"
    checks core | while read -r what binary name way; do
        is_wanted "$way" "$own_kinds" || continue
        began=$(cut -d ' ' -f 1 /proc/uptime)
        result=failed
        if PATH=$work/compilers:$PATH RECORD_WITH=$compiler KEPT_PROGRAMS=$work/programs CROSS_TMP=$cross \
            "$work/tests/amd64/$binary" --exact --show-output "$name" >"$work/said" 2>&1 </dev/null &&
            grep -q '^test result: ok. 1 passed' "$work/said"; then
            result=ok
        else
            sed -n "/^@found /! s/^/$name: /p" "$work/said"
        fi
        sed -n '/^@found /p' "$work/said"
        echo "@check $result $what $name $began $(cut -d ' ' -f 1 /proc/uptime)"
    done >>"$results"
    echo "@end" >>"$results"
    echo "${CHECKS-}" >"$work/programs/checks"
}

# True if a check for one way to attach, or for one machine, is among the given ones. Empty means all.
is_wanted() {
    [ -z "$1" ] || [ -z "$2" ] && return 0
    case ,$2, in *,"$1",*) return 0 ;; esac
    return 1
}

# Prints the result of each check of NAME. Fails unless all ran and passed.
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
        $1 == "@found" && $2 == "budget" { next }
        $1 == "@found" { sub("@found ", ""); print "    found  " $0; next }
        $1 == "@end" { ended = 1; next }
        { said = said "        " $0 "\n" }
        END {
            if (said != "") printf "%s", said
            if (release !~ "^" version "[-.+]") { wrong = ", not Linux " version }
            if (!ended) wrong = wrong ", did not come to its end"
            if (ok != expected) wrong = wrong ", " expected " expected"
            printf "%s: %d ok, %d failed%s\n", name, ok, failed, wrong
            exit wrong != "" || failed
        }' "$work/$name.results"
}

expected_checks() {
    checks "$1" | { count=0; while read -r _ _ _ way; do ! is_wanted "$way" "$2" || count=$((count + 1)); done; echo $count; }
}

# Boots KERNEL with CHECKS, as NAME, with more arguments of the kernel and variables of the tests. Sets
# `status` if anything fails.
run_there() {
    name=$1 kernel=$2 list=$3
    describe "$kernel"
    expected=$(expected_checks "$list" "$kinds")
    [ "$expected" != 0 ] || return 0
    [ "$of_root" = "$built $system" ] || make_root
    of_root="$built $system"
    boot "$@"
    summarize "$name" "$(series_of "$kernel")" "$expected" || status=1
}

[ "$(id -u)" = 0 ] || die "root is needed: the tests trace processes"
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- own $(listed_kernels)
needed='' for_arm64='' for_amd64=''
for kernel in "$@"; do
    case $kernel in
    own) ;;
    *-arm64*) for_arm64=yes needed="$needed /bin/busybox cpio qemu-system-aarch64 aarch64-linux-gnu-g++" ;;
    *) needed="$needed /bin/busybox cpio qemu-system-x86_64" ;;
    esac
done
for program in $needed; do
    command -v "$program" >/dev/null || die "$program is missing: tests/setup.sh kernels $*"
done
mkdir -p "$work/tests" "$work/compilers" "$work/programs"
for name in gcc g++; do
    cp tests/kernels/compiler.sh "$work/compilers/$name"
    chmod 755 "$work/compilers/$name"
done
for kernel in "$@"; do
    [ "$kernel" = own ] || fetch_kernel "$kernel"
done
case " $* " in
*' own '*) ;;
*) has_programs || { echo "==> own first: it compiles what is traced on $*" && set -- own "$@"; } ;;
esac
for kernel in "$@"; do
    case $kernel in *-arm64*) ;; *) for_amd64=yes ;; esac
done
# Programs of checks for arm64 are compiled by this run as well.
own_kinds=${KERNEL_WAYS:-session,multi,perf},amd64${for_arm64:+,arm64}
[ -z "$for_amd64" ] || build amd64 cargo
[ -z "$for_arm64" ] || build arm64 tests/arm64.sh
root=$work/root.$$ of_root=
trap 'rm -rf "$root" "$root.cpio"' EXIT
trap 'exit 1' HUP INT TERM
status=0
for kernel in "$@"; do
    case $kernel in
    own)
        run_here
        summarize own "$(uname -r | cut -d . -f 1-2)" "$(expected_checks core "$own_kinds")" || status=1
        ;;
    *)
        run_there "$kernel" "$kernel" core '' ''
        run_there "$kernel-locked" "$kernel" locked lockdown=confidentiality KERNEL_LOCKDOWN=confidentiality
        ;;
    esac
done
[ "${UPDATE-}" != budget ] || tests/kernels/budget.sh "$work" "$@"
exit $status
