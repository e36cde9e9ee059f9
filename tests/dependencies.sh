#!/bin/sh
# Keeps compiled dependencies between clean clones: `restore` puts them into a target directory that is not there yet, `save`
# keeps those that were compiled. They are valid for one lock file, set of manifests, compiler and environment of flags.
#
# usage: tests/dependencies.sh restore|save
#
# DEPENDENCY_CACHE: where they are kept, ~/.cache/memleak/dependencies if it is not set; `no` keeps none
set -eu
cd "$(dirname "$0")/.."
cache=${DEPENDENCY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/memleak/dependencies}
[ "$cache" != no ] || exit 0
built=${CARGO_TARGET_DIR:-target}/debug
parts='.fingerprint build deps'

manifests() {
    find . -path ./target -prune -o -name Cargo.toml -print | sort
}

key() {
    {
        rustc --version --verbose
        env | grep -E '^(CARGO_PROFILE|RUSTFLAGS|CC|CXX|CFLAGS|LIBBPF)' | sort
        dpkg-query --show libelf-dev zlib1g-dev gcc 2>/dev/null || true
        manifests | xargs cat Cargo.lock
    } | sha256sum | cut -c 1-32
}

# Names of what the workspace itself consists of, as cargo writes them before a hash.
packages() {
    manifests | xargs sed -n 's/^name = "\(.*\)"$/\1/p' | sort -u
}

# Removes from DIRECTORY what is made of the workspace's own sources: all files with the hash of one of its packages.
without_workspace() {
    packages | while read -r package; do
        for fingerprint in "$1/.fingerprint/$package"-*; do
            [ -e "$fingerprint" ] || continue
            hash=${fingerprint##*-}
            rm -rf "$fingerprint"
            echo "$hash"
        done
        rm -rf "$1/build/$package"-*
    done >"$1/hashes"
    find "$1/deps" -type f | grep -F -f "$1/hashes" | xargs -r -d '\n' rm -f
    rm "$1/hashes"
}

restore() {
    if [ -e "$built" ] || [ ! -d "$kept" ]; then return; fi
    mkdir -p "$built"
    for part in $parts; do cp -a "$kept/$part" "$built/$part"; done
    touch "$kept"
    echo "==> dependencies were compiled before: $kept"
}

# Keeps the two sets that were used last.
save() {
    if [ -d "$kept" ] || [ ! -d "$built/deps" ]; then return; fi
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    for part in $parts; do cp -a "$built/$part" "$new/$part"; done
    without_workspace "$new"
    mv -T "$new" "$kept" 2>/dev/null || true
    find "$cache" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' | sort -rn | tail -n +3 | cut -d ' ' -f 2- |
        xargs -r -d '\n' rm -rf
}

kept=$cache/$(key)
case ${1-} in
restore) restore ;;
save) save ;;
*)
    echo "usage: tests/dependencies.sh restore|save" >&2
    exit 2
    ;;
esac
