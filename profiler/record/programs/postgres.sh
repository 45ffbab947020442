#!/usr/bin/env bash
# A PostgreSQL server whose processes share 128 MB of buffers, and two clients that read a row for each transaction.
#
#   postgres.sh SECONDS [connect]: with the word, a connection for each transaction, so a fork of the server each time.
#   Prints how many transactions there were, and the CPU time of the server and its connections in seconds. Ends with 3
#   where there is no PostgreSQL.
set -euo pipefail

seconds=$1
each=${2:+-C}
binaries=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
[ -n "$binaries" ] || { echo "there is no PostgreSQL: apt-get install postgresql" >&2; exit 3; }
folder=$(mktemp -d)
server=
end() {
    [ -z "$server" ] || { kill -INT "$server" 2>/dev/null && wait "$server" || true; }
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 1' INT TERM

# The server refuses to be root.
as=()
if [ "$(id -u)" = 0 ]; then
    chown postgres "$folder"
    as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi
cd "$folder"
"${as[@]}" "$binaries/initdb" -D "$folder/data" -A trust -N >/dev/null
"${as[@]}" "$binaries/postgres" -D "$folder/data" -c listen_addresses= -c unix_socket_directories="$folder" -c fsync=off \
    -c shared_buffers=128MB >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 100); do
    "${as[@]}" "$binaries/pg_isready" -q -h "$folder" && break
    sleep 0.1
done
"${as[@]}" "$binaries/pgbench" -h "$folder" -i -q -s 2 postgres >/dev/null 2>&1
# CPU time of the server and of connections that have ended, in ticks.
used() { sed 's/.*) //' "/proc/$server/stat" | awk '{ print $12 + $13 + $14 + $15 }'; }
sleep 0.2
before=$(used)
transactions=$("${as[@]}" "$binaries/pgbench" -h "$folder" -S $each -n -c 2 -j 2 -T "$seconds" postgres 2>/dev/null |
    sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p')
sleep 0.2
awk -v n="$transactions" -v used="$(($(used) - before))" -v tick="$(getconf CLK_TCK)" 'BEGIN { printf "%d %.3f\n", n, used / tick }'
