#!/bin/sh
# Writes the verifiers' instruction counts, found by the test of budgets, to tests/kernels/budget.tsv: a
# column for each kernel that was run; other columns stay. `-` is a program that was not loaded on a kernel.
#
# usage: tests/kernels/budget.sh WORK KERNEL…    of tests/kernels.sh: its results are in WORK/KERNEL.results
set -eu
work=$1
shift
table=tests/kernels/budget.tsv
{
    awk -F '\t' '/^#/ { next }
        !columns { for (at = 3; at <= NF; at++) name[at] = $at; columns = NF; next }
        { for (at = 3; at <= NF; at++) if ($at != "-") print name[at], $1, $2, $at }' "$table" | sed 's/^/old /'
    for kernel in "$@"; do
        suffix=
        case $kernel in *-arm64-*) continue ;; *-arm64) suffix=-arm64 ;; esac
        tr -d '\r' <"$work/$kernel.results" | sed 's/^.*@found /@found /' | awk -v suffix="$suffix" '
            $1 == "@booted" { split($2, part, "[.+-]"); name = part[1] "." part[2] suffix }
            $1 == "@found" && $2 == "budget" { print "new", name, $3, $4, $5 }'
    done
} | sort -s -k 2,2 | awk '
    # A column that was counted now replaces the old one.
    $1 == "new" { counted[$2] = 1 }
    { lines[++count] = $0 }
    END {
        for (at = 1; at <= count; at++) {
            split(lines[at], part, " ")
            if (part[1] == "new" || !(part[2] in counted)) print part[2], part[3], part[4], part[5]
        }
    }' >"$work/budget"
kernels=$(cut -d ' ' -f 1 "$work/budget" | sort -u | awk '{ print (/arm64/ ? 1 : 0), $0 }' | sort -k 1,1n -k 2,2V | cut -d ' ' -f 2)
{
    sed -n '/^#/p' "$table"
    # shellcheck disable=SC2086
    printf '%s' "program	load" && printf '\t%s' $kernels && echo
    cut -d ' ' -f 2,3 "$work/budget" | sort -u -k 2,2 -k 1,1 | while read -r program load; do
        printf '%s\t%s' "$program" "$load"
        for kernel in $kernels; do
            found=$(awk -v k="$kernel" -v p="$program" -v l="$load" '$1 == k && $2 == p && $3 == l { print $4; exit }' "$work/budget")
            printf '\t%s' "${found:--}"
        done
        echo
    done
} >"$work/budget.tsv"
mv "$work/budget.tsv" "$table"
