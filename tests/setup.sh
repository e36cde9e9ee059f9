#!/bin/sh
# Checks the Rust toolchain and installs the Debian packages that are missing. The only list of them.
# Leaves installed packages alone; if nothing is missing, nothing is run as root.
#
# usage: tests/setup.sh build|test|dist|arm64|kernels|fresh
#        tests/setup.sh kernels [KERNEL]…    as of tests/kernels.sh; all without arguments
set -eu
cd "$(dirname "$0")/.."

# libbpf is compiled from source (make, pkg-config, libelf and zlib headers); clang compiles bpf/. The demo
# compiles C++ and names frames inside libc by its debug symbols.
build_packages='clang g++ libc6-dbg libelf-dev make pkg-config'
# Static libraries, and tools that make packages of a program.
dist_packages='libelf-dev xz-utils zlib1g-dev python3 binutils git'
# Compilers for arm64 on another machine.
arm64_packages='g++-aarch64-linux-gnu gcc-aarch64-linux-gnu'
# Programs that are traced on x86-64's kernels besides those of tests.
traced_packages='python3'
# Packages to boot other kernels: of either machine, of x86-64, of arm64.
guest_packages='binutils busybox-static cpio'
amd64_guest_packages='qemu-system-x86'
arm64_guest_packages="$arm64_packages qemu-system-arm"
# Packages to make a minimal Debian, to try all this in.
fresh_packages='debian-archive-keyring git mmdebstrap util-linux'
# What tests compile with, compare with, and trace. A|B is the first of them that this release has, A? is A if it has that
# (dwp, which is in binutils up to Debian 12).
test_packages='binutils binutils-gold? chromium chromium-driver debuginfod dwz elfutils faketime fuse3 gdb git golang-go google-perftools? heaptrack iproute2
libgc-dev libgoogle-perftools4|libgoogle-perftools4t64 libgssapi-krb5-2 libjemalloc-dev libjemalloc2 libkrb5-3
liblua5.4-0-dbg|libkrb5-dbg libmimalloc2.0|libmimalloc3 libtcmalloc-minimal4|libtcmalloc-minimal4t64 lld lua5.4 man-db mandoc
musl-tools nodejs openjdk-17-jdk-headless|default-jdk-headless openssl php-cli procps prometheus python3 python3-cbor2 python3-jsonschema python3-pip python3-prometheus-client redis-server redis-tools
ruby skopeo sqlite3 squashfs-tools squashfuse systemtap-sdt-dev umoci util-linux valgrind xz-utils'

# CPython of Debian's next release, with headers of one, a library of the other, and all that they need: tests/stacks/python_versions.rs.
next_release=forky
next_packages='python3.14-minimal libpython3.14-minimal libpython3.14-stdlib libpython3.14-dev
python3.15-minimal libpython3.15-minimal libpython3.15-stdlib libpython3.15
libc6 libexpat1 libffi8 libgcc-s1 libzstd1 zlib1g'

die() {
    echo "error: $*" >&2
    exit 1
}

check_toolchain() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    found=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) || found=
    if [ -z "$found" ] || ! cargo --version >/dev/null 2>&1; then
        die "Rust $wanted or newer is needed: curl -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env"
    fi
    if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        die "Rust $wanted or newer is needed, this is $found: rustup update stable && rustup default stable"
    fi
    if [ "$1" = arm64 ] && ! [ -e "$(rustc --print target-libdir --target aarch64-unknown-linux-gnu)" ]; then
        die "Rust's library for arm64 is needed: rustup target add aarch64-unknown-linux-gnu"
    fi
    [ "$1" = test ] || return 0
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        die "rustfmt and clippy are needed: rustup component add rustfmt clippy"
    fi
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# True if the release can have a package, or if nothing is known of that before the first update.
has() {
    [ -z "$(find /var/lib/apt/lists -name '*Packages*' | head -n 1)" ] || apt-cache policy "$1" | grep -q 'Candidate: [0-9]'
}

# Prints those packages, alternatives A|B and A?, of which nothing is installed.
missing_of() {
    for package in "$@"; do
        found=
        for one in $(echo "${package%\?}" | tr '|' ' '); do
            ! is_installed "$one" || found=$one
        done
        case $package in *\?) has "${package%\?}" || found=none ;; esac
        [ -n "$found" ] || echo "$package"
    done
}

# Runs as root, in a new shell. Packages with a service (prometheus, redis) must not start it, nor at the next
# boot.
# shellcheck disable=SC2016
install_script='
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap "rm -f $policy" EXIT
        trap "exit 1" HUP INT TERM
        printf "#!/bin/sh\nexit 101\n" >"$policy"
        chmod 755 "$policy"
    fi
    apt-get update -q
    for package in "$@"; do
        shift
        for one in $(echo "${package%\?}" | tr "|" " "); do
            ! apt-cache policy "$one" | grep -q "Candidate: [0-9]" || { package=$one && break; }
        done
        case $package in *\?) ;; *) set -- "$@" "$package" ;; esac
    done
    apt-get install -q -y --no-install-recommends "$@"
    for package in "$@"; do
        case $package in
        redis-server | prometheus) ! command -v systemctl >/dev/null || systemctl disable "$package" || true ;;
        esac
    done
'

install_missing() {
    if ! command -v apt-get >/dev/null; then
        echo "note: no apt-get here; install the equivalents of Debian's $* by hand" >&2
        return 0
    fi
    missing=$(missing_of "$@")
    [ -n "$missing" ] || return 0
    # One package per word from here on.
    # shellcheck disable=SC2086
    set -- $missing
    echo "==> installing $*"
    if [ "$(id -u)" = 0 ]; then
        sh -c "$install_script" install "$@" </dev/null
    elif command -v sudo >/dev/null; then
        sudo sh -c "$install_script" install "$@"
    else
        die "root is needed, and there is no sudo; as root: apt-get install $*"
    fi || die "could not install: $*"
}

# Installs the packages from PyPI that tests/python.txt pins, for tests alone, not for the whole system.
install_python() {
    installed=target/python/installed.txt
    wanted=$(/usr/bin/python3 --version && cat tests/python.txt)
    [ "$(cat "$installed" 2>/dev/null)" != "$wanted" ] || return 0
    echo "==> installing tests/python.txt in target/python"
    rm -rf target/python
    /usr/bin/python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --only-binary :all: \
        --target target/python --requirement tests/python.txt || die "could not install tests/python.txt"
    echo "$wanted" >"$installed"
}

# Unpacks interpreters of Debian's next release for ARCHITECTURE in DIRECTORY, for tests alone, with the C
# library that they need; they are not installed.
install_interpreters() {
    architecture=$1 next=$(realpath -m "$2")
    [ "$(cat "$next/installed.txt" 2>/dev/null)" != "$next_packages" ] || return 0
    echo "==> unpacking interpreters of $next_release in $2"
    # shellcheck source=tests/debian.sh
    . tests/debian.sh
    rm -rf "$next"
    debian_prepare "$next" "$architecture" "$next_release" || die "could not read the packages of $next_release"
    # One package per word.
    # shellcheck disable=SC2086
    debian_unpack "$next" $next_packages || die "could not download: $next_packages"
    debian_forget "$next"
    echo "$next_packages" >"$next/installed.txt"
}

[ "$(uname -m)" = x86_64 ] || die "x86-64 only, and this is $(uname -m)"
case ${1-} in
build)
    check_toolchain build
    # shellcheck disable=SC2086
    install_missing $build_packages
    ;;
test)
    check_toolchain test
    # shellcheck disable=SC2086
    install_missing $build_packages $test_packages
    # The kernel lists its tracepoints there. Most systems mount it by themselves.
    if [ "$(id -u)" = 0 ] && [ ! -e /sys/kernel/tracing/events ]; then
        mount -t tracefs nodev /sys/kernel/tracing || die "tracefs is needed at /sys/kernel/tracing"
    fi
    # Python's own tests are a package for each version.
    install_missing "$(/usr/bin/python3 -c 'import sys; print("libpython%d.%d-testsuite" % sys.version_info[:2])')"
    install_python
    install_interpreters amd64 target/interpreters
    ;;
dist)
    check_toolchain build
    # shellcheck disable=SC2086
    install_missing $build_packages $dist_packages
    ;;
arm64)
    check_toolchain arm64
    # shellcheck disable=SC2086
    install_missing $build_packages $arm64_packages
    ;;
kernels)
    shift
    [ $# -gt 0 ] || set -- own newest newest-arm64
    packages=$build_packages
    machine=build
    for kernel in "$@"; do
        case $kernel in
        own) packages="$packages $traced_packages" ;;
        *-arm64*) machine=arm64 packages="$packages $guest_packages $arm64_guest_packages" ;;
        *) packages="$packages $traced_packages $guest_packages $amd64_guest_packages" ;;
        esac
    done
    check_toolchain "$machine"
    # shellcheck disable=SC2086
    install_missing $packages
    # Programs compiled for arm64 are traced here first.
    if [ "$machine" = arm64 ]; then
        install_interpreters amd64 target/interpreters
        install_interpreters arm64 target/interpreters-arm64
    fi
    ;;
fresh)
    check_toolchain build
    # shellcheck disable=SC2086
    install_missing $fresh_packages
    ;;
*) die "usage: tests/setup.sh build|test|dist|arm64|kernels|fresh" ;;
esac
if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    die "tracing a process needs root, and there is no sudo: run this as root"
fi
