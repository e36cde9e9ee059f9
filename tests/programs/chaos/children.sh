#!/bin/dash
# Many children: pipes, subshells, substitutions, some in the background, some that fail, some that are killed.
# usage: children.sh ROUNDS STOP
round=0
sleep 1000 &
long_lived=$!
while if [ "$1" -gt 0 ]; then [ "$round" -lt "$1" ]; else [ ! -e "$2" ]; fi; do
    round=$((round + 1))
    numbers=$(seq "$round" $((round + 150)) | sed 's/7/seven/' | sort -r | tail -n 4 | tr '\n' ' ')
    sum=$(printf '%s' "$numbers" | gzip -n -c | gzip -d | cksum)
    (exit 3)
    failed=$?
    sh -c 'kill -TERM $$'
    killed=$?
    lines=$({ echo one; echo two; (echo three) & wait; } | while read -r line; do printf '%s,' "$line"; done)
    (exec 2>/dev/null; expr 1 / 0)
    divided=$?
    echo "$round $sum $failed $killed $lines $divided"
done
kill -0 "$long_lived" || exit 1
kill "$long_lived"
wait "$long_lived"
echo "ended by $?"
exit 42
