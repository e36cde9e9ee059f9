#!/bin/sh
# Runs BACKGROUND beside FOREGROUND, at a lower priority, and prints its output once both have ended. Fails if
# one of them does.
#
# usage: tests/beside.sh BACKGROUND FOREGROUND    commands of a shell
set -u
said=$(mktemp)
trap 'rm -f "$said"' EXIT
trap 'exit 130' HUP INT TERM
# FOREGROUND goes first: if both run cargo, the one that compiles holds the lock on the build for minutes.
# Signals as in tests/step.sh, so that Ctrl-C ends both.
nice -n 10 env --default-signal=HUP,INT,QUIT,TERM sh -c "sleep 5; $1" >"$said" 2>&1 &
background=$!
status=0
sh -c "$2" || status=$?
wait $background || status=$?
cat "$said"
exit $status
