#!/bin/sh
# Runs one step of `make test`: says what runs and how long it took, and how to repeat it when it fails.
#
# usage: tests/step.sh TARGET COMMAND ARGUMENT…    TARGET is the make target that repeats the step
set -u
target=$1
shift
echo "==> $target: $*"
began=$(date +%s)
# Started in the background by a shell, a step would ignore SIGINT, and so would the programs that tests interrupt.
env --default-signal=HUP,INT,QUIT,TERM "$@"
status=$?
took=$(($(date +%s) - began))
if [ "$status" -ne 0 ]; then
    echo "==> $target: FAILED after $took s with status $status; to reproduce: make $target" >&2
    exit "$status"
fi
echo "==> $target: ok, $took s"
