# Contents of a machine that tests/kernels.sh boots, and its boot. To be sourced there: it takes $work,
# $target, $root, `checks` and `is_wanted` from it, and the variables that `describe` of kernels.sh sets.
# shellcheck shell=sh disable=SC2154

# Seconds after which a boot counts as hanging.
most_seconds=1500

# Prints the path of a library in the system from which the guest's files are.
find_library() {
    for directory in lib usr/lib; do
        [ ! -e "$system/$directory/$libraries/$1" ] || { echo "$system/$directory/$libraries/$1"; return; }
    done
}

# Adds the libraries that a file needs to the guest's only directory of libraries, with their debug symbols
# where there are any.
add_libraries() {
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | while read -r name; do
        library=$(find_library "$name")
        if [ -z "$library" ] || [ -e "$root/usr/lib/$libraries/$name" ]; then continue; fi
        cp -L "$library" "$root/usr/lib/$libraries/$name"
        add_names "$library"
        (add_libraries "$library")
    done
}

# Adds a library's debug symbols, where Debian has them.
add_names() {
    id=$(readelf -n "$1" | sed -n 's/.*Build ID: //p')
    names=/usr/lib/debug/.build-id/$(echo "$id" | cut -c 1-2)/$(echo "$id" | cut -c 3-).debug
    [ ! -e "$system$names" ] || { mkdir -p "$root${names%/*}" && cp "$system$names" "$root$names"; }
}

# Adds a file of the guest's system as DIRECTORY/NAME.
add_tool() {
    tool=$system/bin/$2
    [ -e "$tool" ] || tool=$system/usr/bin/$2
    rm -f "$root$1/$2"
    cp -L "$tool" "$root$1/$2"
    add_libraries "$tool"
}

# Adds Python, and what the tests' programs load of its library.
add_python() {
    mkdir -p "$root/usr/bin" "$root$PWD/tests/programs"
    cp -r tests/programs/python "$root$PWD/tests/programs"
    cp -L "$system/usr/bin/python3" "$root/usr/bin/python3"
    add_libraries "$system/usr/bin/python3"
    if [ -n "$system" ]; then
        library=$(find "$system/usr/lib" -maxdepth 1 -name 'python3.*')
        add_whole_python "$library" "/usr/lib/${library##*/}"
        for module in "$library"/lib-dynload/_ctypes.*; do add_libraries "$module"; done
        # Interpreters of the next release, with their own libraries.
        [ ! -e "target/interpreters-$machine/root" ] ||
            add_whole_python "target/interpreters-$machine/root" "$PWD/target/interpreters/root"
        return
    fi
    modules=$(sed -n 's/^import \([^;]*\)$/\1/p' tests/programs/python/chains.py)
    /usr/bin/python3 -c "
import $modules, sys
for module in list(sys.modules.values()):
    for path in {getattr(module, '__file__', None), getattr(module, '__cached__', None)} - {None}: print(path)
" | while read -r file; do
        mkdir -p "$root${file%/*}"
        cp "$file" "$root$file"
        case $file in *.so) add_libraries "$file" ;; esac
    done
}

# Adds files below the first DIRECTORY as the second: all of a Python that cannot run here to tell what it
# loads, without large parts that no test needs.
add_whole_python() {
    mkdir -p "$root$2"
    (cd "$1" && find . \( -name test -o -name 'config-*' -o -name ensurepip -o -name idlelib -o -name include -o -name pydoc_data \) -prune -o \
        ! -type d -print | cpio --quiet -p -d "$root$2")
}

# Adds a built file as PATH, without debug information.
add_built() {
    mkdir -p "$root${2%/*}"
    "${tools}strip" -g -o "$root$2" "$1"
    add_libraries "$1"
}

# Fills $root with all that is the same for all kernels of one system.
make_root() {
    rm -rf "$root"
    # This becomes `/`, which all users must be able to enter.
    mkdir -m 755 "$root"
    for directory in bin compilers dev etc mnt proc programs root sys tests tmp "usr/lib/$libraries" var/tmp; do
        mkdir -p "$root/$directory"
    done
    ln -s usr/lib "$root/lib"
    mkdir -p "$root/${loader%/*}"
    ln -s "/usr/lib/$libraries/${loader##*/}" "$root/$loader"
    add_tool /bin busybox
    for applet in $(/bin/busybox --list); do
        [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
    done
    cp tests/kernels/init "$root/init"
    chmod 755 "$root/init"
    # Users that tests expect.
    printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
    add_tool /bin kill
    add_tool /bin setpriv
    add_built "$built/memleak" "$built/memleak"
    for link in "$work/tests/$machine"/*; do
        add_built "$(readlink "$link")" "/tests/${link##*/}"
    done
    add_python
    cp "$work"/compilers/* "$root/compilers"
    for program in "$work/programs/$programs"/*; do
        # No program, if no wanted check compiles one.
        [ -e "$program" ] || continue
        cp "$program" "$root/programs"
        add_libraries "$program"
    done
}

# Boots KERNEL with CHECKS, more arguments of the kernel and variables of the tests; results are in
# $work/NAME.results.
boot() {
    name=$1 kernel=$2 list=$3 append=$4 variables=$5
    checks "$list" | while read -r what binary check way; do
        ! is_wanted "$way" "$kinds" || echo "$what $binary $check"
    done >"$root/checks"
    # Strict settings, which do not affect a process that has the capabilities.
    cat >"$root/environment" <<END
export KERNEL_WAYS=$ways KEPT_PROGRAMS=/programs MEMLEAK_SHORT_LOAD=1 MEMLEAK_TEST_REQUIRE=all MEMLEAK_TEST_PATIENCE=3 $variables
echo 3 >/proc/sys/kernel/perf_event_paranoid
echo 2 >/proc/sys/kernel/unprivileged_bpf_disabled
END
    (cd "$root" && find . | cpio --quiet -o -H newc) >"$root.cpio"
    rm -f "$work/$name.results"
    # Preemptible wherever a kernel can be (preempt=full), programs at uprobes included; kernels for servers
    # are not by default (preempt=none). Two serial ports: one is the console, results are written to the
    # other. Emulated processors of x86 take turns: in separate threads, one can keep a breakpoint that
    # another has removed from the kernel's code, as switching BPF statistics does, and the kernel dies of it.
    case $machine in
    amd64)
        console=ttyS0 turns=,thread=single
        set -- qemu-system-x86_64 -serial "file:$work/$name.console" -serial "file:$work/$name.results"
        ;;
    arm64)
        console=ttyAMA0 turns=
        set -- qemu-system-aarch64 -M virt -serial "file:$work/$name.console" \
            -chardev "file,id=results,path=$work/$name.results" -device pci-serial,chardev=results
        ;;
    esac
    timeout --foreground "$most_seconds" "$@" -accel "tcg$turns" -cpu "$processor" -m 3072 -smp 2 -display none -nodefaults -no-reboot \
        -kernel "$work/$kernel/vmlinuz" -initrd "$root.cpio" \
        -append "console=$console RESULTS=$terminal quiet panic=1 mitigations=off preempt=full $append" ||
        echo "qemu ended with status $?; see $work/$name.console" >>"$work/$name.results"
}
