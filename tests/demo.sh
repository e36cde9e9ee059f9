#!/bin/sh
# Starts the sample leaker, which was built without frame pointers, and shows its leaking stack by both ways
# to walk. Fails unless --unwind dwarf gives every frame of it. `make demo` builds memleak and calls this.
#
# usage: tests/demo.sh MEMLEAK
set -eu
memleak=$(realpath "$1")
cd "$(dirname "$0")/.."

die() {
    echo "error: $*" >&2
    exit 1
}

if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null; then
    sudo=sudo
else
    die "tracing a process needs root, and there is no sudo: run this as root"
fi

work=$(mktemp -d)
leaker=
clean_up() {
    if [ -n "$leaker" ]; then
        kill "$leaker" 2>/dev/null || true
        wait "$leaker" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

g++ -O2 -fomit-frame-pointer -o "$work/leaker" tests/programs/amounts/leaker.cpp
# This shell keeps the pipe open. If it is killed, the leaker's input ends, and the leaker with it.
mkfifo "$work/input"
exec 3<>"$work/input"
"$work/leaker" 0 1000 <"$work/input" 3>&- &
leaker=$!

# Traces three times for a second and prints the last report.
last_report() {
    echo
    echo "\$ memleak --unwind $1 -p $leaker 1 3        # the last of three reports"
    # shellcheck disable=SC2086
    $sudo "$memleak" --unwind "$1" -p "$leaker" 1 3 3>&- >"$work/$1" 2>"$work/messages" ||
        die "memleak failed: $(cat "$work/messages")"
    awk '/^\[..:..:..\] /{ text = "" } { text = text $0 "\n" } END { printf "%s", text }' \
        "$work/$1" >"$work/$1.last"
    cat "$work/$1.last"
}

# True if lines with these texts are in the file in this order.
in_order() {
    awk -v wanted="$2" '
        BEGIN { count = split(wanted, text, "\n"); next_one = 1 }
        next_one <= count && index($0, text[next_one]) { next_one++ }
        END { exit next_one <= count }
    ' "$1"
}

frames_of() {
    grep '^    [> ] ' "$1" | grep -vc '^      end: ' || true
}

expected='operator new(unsigned long)
LeakLib::slowMemoryLeak()
caller()
main
__libc_start_call_main
__libc_start_main
_start
end: complete'

cat <<END
A program that leaks: main() -> caller() -> LeakLib::slowMemoryLeak() -> new int[10].
Neither it nor libstdc++ keeps frame pointers, as is usual.
END
last_report dwarf
in_order "$work/dwarf.last" "$expected" ||
    die "this is not the whole stack; please report it with the output of $memleak -v -p PID"
last_report fp

cat <<END

By unwind tables: $(frames_of "$work/dwarf.last") frames, from operator new to _start, and the stack is marked complete.
By frame pointers: $(frames_of "$work/fp.last") frame(s); who leaked is lost, and the stack's end says so.
END
