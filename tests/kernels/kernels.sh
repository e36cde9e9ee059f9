# Debian's kernels: list, facts about each, and functions to fetch them. To be sourced; needs $work and $target.
# shellcheck shell=sh disable=SC2154
# shellcheck source=tests/debian.sh
. tests/debian.sh

# Debian's releases that have kernels. Packages are used as data, so that they need not fit together.
kernel_releases='bookworm trixie trixie-backports forky sid experimental'

# Prints the names of the kernels of tests/kernels/list: SERIES, and SERIES-arm64 for those that are for
# arm64.
listed_kernels() {
    sed '/^#/d' tests/kernels/list | while read -r series _ _ _ machines; do
        case ,$machines, in *,amd64,*) echo "$series" ;; esac
    done
    sed '/^#/d' tests/kernels/list | while read -r series _ _ _ machines; do
        case ,$machines, in *,arm64,*) echo "$series-arm64" ;; esac
    done
}

# Sets variables for KERNEL: SERIES, SERIES-arm64 or SERIES-arm64-16k of tests/kernels/list, or `newest`:
#   series, release, tried  as in the list; without a series, the newest that there is
#   machine, ways           Debian's architecture, ways to attach
#   kinds                   checks that are wanted, of those for some kernels only
#   pages                   the suffix of Debian's kernels with pages of another size than 4 KiB
#   system                  where files of that release for that machine are; empty if this machine's own will do
#   libraries, loader       its directory of libraries, and the path that programs know their loader by
#   built, tools, programs  directory of what cargo built for it, prefix of its binutils, kept programs to run on it
#   processor, terminal     what qemu is to emulate, and the guest's device that takes results
describe() {
    row=$(awk -v series="${1%%-*}" '$1 == series' tests/kernels/list)
    [ "${1%%-*}" != newest ] || row=$(sed '/^#/d' tests/kernels/list | tail -n 1)
    # shellcheck disable=SC2086
    set -- "$1" $row
    [ $# -eq 6 ] || die "no kernel $1 here: own, newest, newest-arm64, $(listed_kernels | paste -s -d ' '), and SERIES-arm64-16k"
    series=$2 release=$3 tried=$4 ways=$5
    [ "${1%%-*}" != newest ] || { series='' tried=''; }
    pages=
    case $1 in *-16k) pages=-16k ;; esac
    case $1 in
    *-arm64*)
        machine=arm64 system=$work/$1/root tools=aarch64-linux-gnu- terminal=ttyS0
        libraries=aarch64-linux-gnu loader=lib/ld-linux-aarch64.so.1 built=$target/aarch64-unknown-linux-gnu/debug
        ;;
    *)
        machine=amd64 system='' tools='' terminal=ttyS1
        libraries=x86_64-linux-gnu loader=lib64/ld-linux-x86-64.so.2 built=$target/debug
        ;;
    esac
    kinds=$ways,$machine
    # Processors with and without signed return addresses, and programs to go with them.
    case $1 in
    6.1-arm64) programs=arm64 processor=cortex-a72 ;;
    *-arm64*) programs=arm64-signed processor=max,pauth-impdef=on ;;
    *) programs=amd64 processor=max ;;
    esac
}

# Prints the versions of SERIES, or of all series without it, that the releases in DIRECTORY have for
# $machine, the newest last.
versions_of() {
    number='[0-9]*\(\.[0-9]\+\)*\(-[0-9]\+\)\?\(+deb[0-9.]*\)\?'
    debian_apt "$1" apt-cache pkgnames linux- |
        sed -n "s/^linux-\(image\|binary\)-\($number\)-$machine$pages\$/\2/p" |
        awk -v series="$2" 'series == "" || index($0 ".", series ".") == 1' | sort -V -u
}

# Prints the package with the image of VERSION: until 6.18 all of a kernel is one package.
package_of() {
    for kind in binary image; do
        ! debian_has "$1" "linux-$kind-$2-$machine$pages" || { echo "linux-$kind-$2-$machine$pages"; return; }
    done
}

# Sets `version` for KERNEL, after `describe`, from packages in $directory: the version that was tried last,
# else the newest of its series. Returns 1 if Debian's packages cannot be read.
choose_version() {
    version=$tried
    if [ -n "$tried" ]; then
        debian_prepare "$directory" "$machine" "$release" || return 1
        [ -z "$(package_of "$directory" "$tried")" ] || return 0
    fi
    # shellcheck disable=SC2086
    debian_prepare "$directory" "$machine" $kernel_releases || return 1
    version=$(versions_of "$directory" "$series" | tail -n 1)
    [ -n "$version" ] || die "Debian no longer has Linux ${series:-at all} for $machine$pages: remove it from tests/kernels/list"
    [ -z "$tried" ] || echo "==> $1: Debian no longer has $tried; using $version"
}

# Packages of the guest's own release for a guest of another machine. Names of functions within libc are debug
# symbols. Python is that release's default, with the libraries that its modules need; `_` stands for its
# version.
guest_packages='busybox-static libc6 libc6-dbg libcap-ng0 libexpat1 libffi8 libgcc-s1 libpython_-minimal libpython_-stdlib libstdc++6 procps
python3-minimal python_-minimal util-linux zlib1g'

# Fetches $work/KERNEL/vmlinuz, and what else a guest needs, once; the newest is looked for each time. Exits
# with 4 if packages cannot be read.
fetch_kernel() {
    describe "$1"
    directory=$work/$1
    fetch_image "$1"
    [ -z "$system" ] || [ "$(cat "$directory/system" 2>/dev/null)" = "$guest_packages" ] || fetch_system "$1"
}

# Fetches files of the guest's release, for another machine, after `describe`.
fetch_system() {
    echo "==> fetching files of ${release%-backports} for $machine"
    rm -rf "$directory/root" "$directory/system"
    debian_prepare "$directory" "$machine" "${release%-backports}"
    python=$(debian_apt "$directory" apt-cache depends python3-minimal | sed -n 's/.*Depends: python\(3\.[0-9]*\)-minimal$/\1/p')
    [ -n "$python" ] || die "python3-minimal of ${release%-backports} depends on no Python"
    # One package per word.
    # shellcheck disable=SC2046
    debian_unpack "$directory" $(echo "$guest_packages" | sed "s/_/$python/g")
    debian_forget "$directory"
    echo "$guest_packages" >"$directory/system"
}

# Fetches the image of a kernel, after `describe`.
fetch_image() {
    kept=$(cat "$directory/complete" 2>/dev/null) || kept=
    [ -z "$kept" ] || [ -z "$series" ] || return 0
    mkdir -p "$directory"
    if ! choose_version "$1"; then
        echo "error: cannot read what Debian has for $machine" >&2
        [ -n "$kept" ] || exit 4
        version=$kept
    fi
    if [ "$kept" = "$version" ]; then
        debian_forget "$directory"
        return
    fi
    rm -rf "$directory/root" "$directory/complete" "$directory/system"
    package=$(package_of "$directory" "$version")
    echo "==> fetching $package"
    debian_unpack "$directory" "$package"
    # From 7.2 on, it is below lib/modules, within /usr.
    find "$directory/root" -name "vmlinuz-$version*" -o -path '*/modules/*' -name vmlinuz | head -n 1 |
        while read -r image; do mv "$image" "$directory/vmlinuz"; done
    [ -e "$directory/vmlinuz" ] || die "$package has no image of a kernel where there was one in others"
    rm -r "$directory/root"
    debian_forget "$directory"
    echo "$version" >"$directory/complete"
}

# Prints the series of a fetched kernel. Newer kernels are not in the release of their machine.
series_of() {
    cut -d . -f 1-2 "$work/$1/complete" | sed 's/[-+].*//'
}
