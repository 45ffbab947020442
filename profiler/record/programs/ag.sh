#!/usr/bin/env bash
# The Silver Searcher, which looks for a pattern that no line matches in the files of a folder, again and again.
#
#   ag.sh FOLDER SECONDS [OPTION...]: with these options. Prints how often it has looked, and the CPU time in seconds.
set -euo pipefail

folder=$1
seconds=$2
shift 2
told=$(mktemp)
trap 'rm -f "$told"' EXIT
searches=0
end=$((SECONDS + seconds))
while ((SECONDS < end)); do
    # It ends with 1 where nothing is found.
    ag "$@" --count 'zq[xy]jkv(w|z)q' "$folder" </dev/null >/dev/null || [ $? = 1 ]
    searches=$((searches + 1))
done
# The second line is of those that have ended, by this shell and no other: in the program, and in the kernel.
times >"$told"
cpu=$(tr 'ms' '  ' <"$told" | awk 'NR == 2 { printf "%.3f", $1 * 60 + $2 + $3 * 60 + $4 }')
echo "$searches $cpu"
