#!/usr/bin/env bash
# A Redis server with two I/O threads and 200 MB in it, which writes snapshots by fork while its clients overwrite all
# of that.
#
#   redis.sh SECONDS PAUSE: a snapshot each PAUSE seconds. Prints how many SETs there were, and the server's CPU time in
#   seconds.
set -euo pipefail

seconds=$1
pause=$2
folder=$(mktemp -d)
server= clients=
end() {
    [ -z "$clients" ] || kill "$clients" 2>/dev/null || true
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" || true; }
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 1' INT TERM

ask() { redis-cli -s "$folder/socket" "$@"; }
redis-server --port 0 --unixsocket "$folder/socket" --dir "$folder" --logfile "$folder/log" --save '' --appendonly no \
    --io-threads 2 --io-threads-do-reads yes &
server=$!
for _ in $(seq 100); do
    ask ping >/dev/null 2>&1 && break
    sleep 0.05
done
ask debug populate 200000 key 1000 >/dev/null
redis-benchmark -s "$folder/socket" -t set -r 200000 -d 1000 -n 1000000000 -c 16 -P 8 -q >/dev/null 2>&1 &
clients=$!
for ((at = 0; at < seconds; at += pause)); do
    ask bgsave >/dev/null
    sleep "$((seconds - at < pause ? seconds - at : pause))"
done
sets=$(ask info commandstats | sed -n 's/^cmdstat_set:calls=\([0-9]*\).*/\1/p')
# The server's own, and its children's that wrote the snapshots.
cpu=$(ask info cpu | tr -d '\r' | awk -F: '/^used_cpu_(sys|user)(_children)?:/ { sum += $2 } END { printf "%.3f", sum }')
echo "$sets $cpu"
