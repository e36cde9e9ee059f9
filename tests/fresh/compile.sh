#!/bin/sh
# Runs tests that were built elsewhere up to the point where they have compiled their programs: each ends
# before it starts the first program that it traces or, where nothing is traced, at its end. Called by
# tests/fresh.sh in a new system, to check that its packages are enough for that.
#
# usage: tests/fresh/compile.sh LIST    of DIRECTORY EXECUTABLE
set -eu
list=$1
export MEMLEAK_TEST_COMPILE_ONLY=1
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# Prints the output of failed tests, except those that ended because tests only compile. Fails if there is a
# failed one, or no result.
judge() {
    awk -v name="$1" '
        /^---- .* stdout ----$/ { test = $2; text[test] = ""; next }
        /^failures:$/ { test = "" }
        /^test result: / { result = $0 }
        test != "" { text[test] = text[test] "    " $0 "\n" }
        END {
            for (test in text) {
                if (text[test] ~ /compiled, and nothing is run with/) { only++; continue }
                printf "%s: %s\n%s", name, test, text[test]
                failed++
            }
            if (match(result, /[0-9]+ passed/)) passed = substr(result, RSTART, RLENGTH) + 0
            if (match(result, /[0-9]+ failed/)) all_failed = substr(result, RSTART, RLENGTH) + 0
            if (result == "" || all_failed != failed + only) { print name ": no result of each test"; failed++ }
            printf "%s: %d compiled, %d ran, %d failed\n", name, only, passed, failed
            exit failed > 0
        }' "$said"
}

failed=
while read -r directory executable; do
    name=${executable##*/}
    (cd "$directory" && exec "$executable" </dev/null >"$said" 2>&1) || true
    judge "${name%-*}" || failed="$failed ${name%-*}"
done <"$list"
[ -z "$failed" ] || { echo "error: failed:$failed" >&2; exit 1; }
