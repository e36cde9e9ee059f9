#!/bin/sh
# Runs BACKGROUND beside FOREGROUND, with what that leaves of the CPUs, and shows what it said once both have ended. Fails if
# one of them does.
#
# usage: tests/beside.sh BACKGROUND FOREGROUND    commands of a shell
set -u
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# Both may be cargo, whose lock on a build is taken by whoever comes first: soon given back by one that has nothing to compile.
nice -n 10 sh -c "sleep 5; $1" >"$said" 2>&1 &
background=$!
status=0
sh -c "$2" || status=$?
wait $background || status=$?
cat "$said"
exit $status
