#!/bin/sh
# Runs BACKGROUND beside FOREGROUND, with what that leaves of the CPUs, and shows what it said once both have ended. Fails if
# one of them does.
#
# usage: tests/beside.sh BACKGROUND FOREGROUND    commands of a shell
set -u
said=$(mktemp)
trap 'rm -f "$said"' EXIT
trap 'exit 130' HUP INT TERM
# FOREGROUND goes first: if both are cargo, that which compiles holds the lock on the build for minutes. Signals as in
# tests/step.sh, so that Ctrl-C ends both.
nice -n 10 env --default-signal=HUP,INT,QUIT,TERM sh -c "sleep 5; $1" >"$said" 2>&1 &
background=$!
status=0
sh -c "$2" || status=$?
wait $background || status=$?
cat "$said"
exit $status
