#!/bin/sh
# Tries the README's commands where nothing is installed yet: in a new minimal Debian with only make,
# certificates, this machine's Rust toolchain and a clone of HEAD, on this machine's kernel. As root.
#
# usage: tests/fresh.sh [RELEASE]…          Debian's releases; bookworm, trixie and forky without arguments
#        tests/fresh.sh enter RELEASE       a shell in what a run that failed has left
#
# STEPS: what is done there, one after another; `demo test` if it is not set
#   setup      tests/setup.sh test
#   compile    everything that tests compile, by tests that were built here (tests/fresh/compile.sh)
#   demo test  make demo, make test
#   dist       make dist, and the package that it made, installed
#   all        demo test
# KEEP: if set, what a run that passed has left is kept, too
# FRESH_CACHE: where downloaded packages are kept, ~/.cache/memleak if it is not set
# DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR: where packages come from, if not from where this machine's come
#
# Exits with 3 if no such system can be made on this machine, with 1 if a step failed in one.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cache=${FRESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memleak}

die() {
    echo "error: $*" >&2
    exit 1
}

# Ends the script: this machine cannot make or run such a system, whatever is to be tried.
unable() {
    echo "error: $*" >&2
    exit 3
}

# Prints the mirror of this machine's Debian packages, for suites that PATTERN matches.
own_mirror() {
    apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk -v pattern="$1" '$1 == "Debian" && $2 ~ pattern { sub("/$", "", $3); print $3; exit }'
}

# Prints sources of packages as an installed RELEASE has them.
sources() {
    mirror=${DEBIAN_MIRROR:-$(own_mirror '^[a-z]+$')}
    security=${DEBIAN_SECURITY_MIRROR:-$(own_mirror '-security$')}
    signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
    echo "deb $signed ${mirror:=http://deb.debian.org/debian} $1 main"
    echo "deb $signed $mirror $1-updates main"
    echo "deb $signed ${security:-http://deb.debian.org/debian-security} $1-security main"
}

# Makes a new minimal system in $root.
make_root() {
    rm -rf "$root"
    mkdir -p "$root" "$cache/$release/partial"
    sources "$release" >"$root.list"
    # This machine's settings for reaching mirrors.
    apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-|Retries|ForceIPv)' >"$root.apt" || true
    mmdebstrap --quiet --variant=minbase --include=ca-certificates,make --aptopt="$root.apt" --dpkgopt=force-unsafe-io \
        "$release" "$root" "$root.list" || unable "could not make a minimal $release"
    rm "$root.list" "$root.apt"
    # Certificates that this machine trusts.
    find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$root/usr/local/share/ca-certificates" \; 2>/dev/null || true
    chroot "$root" update-ca-certificates >/dev/null 2>&1
}

# Adds this machine's Rust as rustup installs it: its programs and one toolchain are shared, settings are new.
# Crates that were fetched here are copied.
add_rust() {
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    sysroot=$(rustc --print sysroot)
    [ -x "$cargo_home/bin/rustup" ] || unable "a Rust toolchain by rustup is needed, and there is no $cargo_home/bin/rustup"
    mkdir -p "$root/root/.cargo/bin" "$root/root/.cargo/registry" "$root/root/.rustup/toolchains/${sysroot##*/}"
    printf 'version = "12"\nprofile = "minimal"\ndefault_toolchain = "%s"\n' "${sysroot##*/}" >"$root/root/.rustup/settings.toml"
    for kept in config.toml registry/index registry/cache; do
        [ ! -e "$cargo_home/$kept" ] || cp -R "$cargo_home/$kept" "$root/root/.cargo/$kept"
    done
    printf '%s %s ro\n' "$cargo_home/bin" /root/.cargo/bin "$sysroot" "/root/.rustup/toolchains/${sysroot##*/}" >"$root.shared"
    printf '%s %s rw\n' "$cache/$release" /var/cache/apt/archives >>"$root.shared"
}

# Builds the tests here and lists them in $root/root/tests. The new system sees them at the same paths,
# read-only; what they write stays below $root.
add_tests() {
    mkdir -p "$target/tmp" "$root/var/tmp/tests"
    cargo test --workspace --locked --no-run --message-format=json >"$root.built"
    sed -n 's#.*"manifest_path":"\([^"]*\)/Cargo.toml".*"kind":\["\(test\|lib\)"\].*"executable":"\([^"]*\)".*#\1 \3#p' \
        "$root.built" | sort -u >"$root/root/tests"
    [ -s "$root/root/tests" ] || die "no test was built"
    rm "$root.built"
    # The history of a worktree is elsewhere.
    history=$(git rev-parse --path-format=absolute --git-common-dir)
    printf '%s %s ro\n' "$here" "$here" "$target" "$target" "$history" "$history" >>"$root.shared"
    printf '%s %s rw\n' "$root/var/tmp/tests" "$target/tmp" >>"$root.shared"
}

# Runs a command in the new system, in the clone.
inside() {
    unshare --mount --propagation private ${processes-} sh tests/fresh/enter.sh "$root" "$@"
}

run_step() {
    step=$1
    processes=
    case $step in
    # Processes that packages start end with the step.
    setup) processes='--pid --fork --kill-child' && set -- make setup-test ;;
    compile)
        add_tests
        set -- env "PATH=$path:/root/.cargo/bin" INSTA_WORKSPACE_ROOT="$here" tests/fresh/compile.sh /root/tests
        ;;
    demo) set -- make demo ;;
    test) set -- env MEMLEAK_TEST_REQUIRE=1 make test ;;
    dist) set -- sh -c 'make dist && apt-get install --quiet --yes ./target/dist/memleak_*_amd64.deb && memleak --version' ;;
    *) die "no step $step: setup, compile, demo, test, dist or all" ;;
    esac
    echo "==> $release: $step"
    began=$(date +%s)
    inside "$@" || {
        echo "==> $release: $step FAILED after $(($(date +%s) - began)) s; to look around there: tests/fresh.sh enter $release" >&2
        return 1
    }
    echo "==> $release: $step ok, $(($(date +%s) - began)) s"
}

run_release() {
    echo "==> $release: a minimal system in $root"
    began_all=$(date +%s)
    make_root
    add_rust
    git clone --quiet . "$root/root/memleak"
    for step in $steps; do
        run_step "$step" || return 1
    done
    [ -n "${KEEP-}" ] || rm -rf "$root" "$root.shared"
    echo "==> $release: all ok, $(($(date +%s) - began_all)) s"
}

[ "$(id -u)" = 0 ] || unable "root is needed: a Debian is made, and entered by namespaces of its own"
for program in mmdebstrap unshare git; do
    command -v $program >/dev/null || unable "$program is missing: tests/setup.sh fresh"
done
if [ "${1-}" = enter ]; then
    [ $# = 2 ] && [ -e "$target/fresh/$2.shared" ] || die "usage: tests/fresh.sh enter RELEASE, of a run that failed or had KEEP=1"
    root=$target/fresh/$2
    inside env "PATH=$path:/root/.cargo/bin" bash
    exit
fi
[ $# -gt 0 ] || set -- bookworm trixie forky
steps=$(echo "${STEPS:-all}" | sed 's/\ball\b/demo test/')
mkdir -p "$target/fresh"
failed=
for release in "$@"; do
    root=$target/fresh/$release
    run_release || failed="$failed $release"
done
[ -z "$failed" ] || die "failed:$failed"
