#!/bin/sh
# Makes a corpus for each fuzz target from the seeds that are kept here and from small real files of this
# machine.
#
# usage: tests/fuzz/corpus.sh DIRECTORY
set -eu
cd "$(dirname "$0")"
to=$1
# Maximum size of a file to take.
most=20k

mkdir -p "$to/elf" "$to/symbols" "$to/allocators" "$to/python_builds"
for seeds in seeds/*/; do
    name=$(basename "$seeds")
    mkdir -p "$to/$name"
    cp -n "$seeds"* "$to/$name/"
done
./objects.sh "$to/elf"
cp -n "$to/elf/cpython" "$to/python_builds/"
# Small objects of the distribution, which come from many compilers and linkers.
for directory in /usr/lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu/gconv /usr/bin /usr/lib/debug/.build-id/*; do
    find "$directory" -maxdepth 1 -type f -size "-$most" -exec sh -c '
        to=$1
        shift
        for file; do
            [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] && cp -n "$file" "$to/$(basename "$file")"
        done
        true' copy "$to/elf" {} +
done
cp -n "$to/elf/"* "$to/symbols/"
cp -n "$to/elf/"* "$to/allocators/"
# Maps of all running processes.
for process in /proc/[0-9]*; do
    for file in maps stat; do
        head -c 8192 "$process/$file" >"$to/maps/$file-${process#/proc/}" 2>/dev/null || true
    done
done
find "$to" -type f -empty -delete
# Names as compilers write them.
nm -D --defined-only /usr/lib/x86_64-linux-gnu/libstdc++.so.6 | sed 's/.* //; s/@.*//' | grep '^_Z' |
    split -l 40 - "$to/demangle/libstdcxx-"
