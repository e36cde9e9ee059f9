# Debian's packages of any release and architecture, as data: they are downloaded with separate settings of
# apt, and unpacked; this machine itself is not changed. To be sourced.
#
# DEBIAN_MIRROR: where packages come from, if not deb.debian.org
# shellcheck shell=sh

# Writes settings in DIRECTORY for packages of ARCHITECTURE in each RELEASE, and fetches the lists of
# packages.
debian_prepare() {
    debian=$1 architecture=$2
    shift 2
    mkdir -p "$debian/lists/partial" "$debian/cache/archives/partial" "$debian/packages"
    : >"$debian/status"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    for suite in "$@"; do
        echo "deb [signed-by=$keys] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $suite main"
    done >"$debian/sources.list"
    cat >"$debian/apt.conf" <<END
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "$debian";
Dir::State::status "$debian/status";
Dir::Cache "$debian/cache";
Dir::Etc::sourcelist "$debian/sources.list";
Dir::Etc::sourceparts "-";
END
    debian_apt "$debian" apt-get update -qq -o APT::Update::Error-Mode=any
}

# Runs a program of apt with the settings in DIRECTORY.
debian_apt() {
    debian=$1
    shift
    APT_CONFIG="$debian/apt.conf" "$@"
}

# True if there is such a package.
debian_has() {
    debian_apt "$1" apt-cache policy "$2" | grep -q 'Candidate: [0-9]'
}

# Unpacks packages into DIRECTORY/root.
debian_unpack() {
    debian=$1
    shift
    mkdir -p "$debian/root"
    (cd "$debian/packages" && debian_apt "$debian" apt-get download -qq "$@")
    for package in "$debian/packages"/*.deb; do
        dpkg-deb -x "$package" "$debian/root"
        rm "$package"
    done
}

# Removes what only downloading needs.
debian_forget() {
    rm -rf "$1/lists" "$1/cache" "$1/packages" "$1/status" "$1/sources.list" "$1/apt.conf" "$1"/*cache.bin
}
