# Sourced by `run` and `run-aarch64`, which define `hunt CALL OPTION ...`.

# Leaves out one flush at a time, and prints a table of what was found. Then hunts with no flush left out. Takes a list
# of calls and what to leave out, and the calls to try: all if there is none. Returns 1 if a flush was missed, or
# something else was found.
hunt_plants() {
    local flushes=$1 failed=0 call flush with output found
    shift
    echo '| test | left out | found: entry changed in |'
    echo '| --- | --- | --- |'
    while read -r call flush; do
        [ -n "$call" ] || continue
        [ $# -eq 0 ] || [[ " $* " == *" $call "* ]] || continue
        with=()
        [ "$call" != nmi ] || with=("${nmis[@]}")
        output=$(hunt "$call" --skip "$flush" "${with[@]}" 2>&1) || true
        found=$(sed -n 's/^  changed by CPU [0-9]* at 0x[0-9a-f]* \([a-z_0-9]*\).*/`\1`/p' <<<"$output" | head -n1)
        if [ -z "$found" ]; then
            failed=1
            found="**missed**: $(tail -n1 <<<"$output")"
        fi
        echo "| \`$call\` | \`$flush\` | $found |"
    done <<<"$flushes"
    if [ $# -eq 0 ]; then
        hunt all || failed=1
        [[ $flushes != *nmi* ]] || hunt nmi "${nmis[@]}" || failed=1
    fi
    return $failed
}

# What the call `nmi` needs.
nmis=(--nmi 64 --hold 64)
