#!/usr/bin/env bash
# A PostgreSQL server with 128 MB of shared buffers, and two clients that read a row in each transaction.
#
#   postgres.sh FOLDER prepare: makes a database there.
#   postgres.sh FOLDER TRANSACTIONS [-C]: each client makes this many; with -C, each in a connection of its own.
set -euo pipefail

folder=$1
binaries=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
server=
end() { [ -z "$server" ] || { kill -INT "$server" 2>/dev/null && wait "$server" || true; }; }
trap end EXIT
trap 'exit 1' INT TERM

if [ "$2" = prepare ]; then
    rm -rf "$folder"
    install -d -o postgres "$folder"
fi
cd "$folder"
[ "$2" != prepare ] || "${as[@]}" "$binaries/initdb" -D "$folder/data" -A trust -N >/dev/null
"${as[@]}" "$binaries/postgres" -D "$folder/data" -c listen_addresses= -c unix_socket_directories="$folder" -c fsync=off \
    -c shared_buffers=128MB >"$folder/log" 2>&1 &
server=$!
until "${as[@]}" "$binaries/pg_isready" -q -h "$folder"; do sleep 0.05; done
if [ "$2" = prepare ]; then
    "${as[@]}" "$binaries/pgbench" -h "$folder" -i -q -s 2 postgres >/dev/null 2>&1
else
    "${as[@]}" "$binaries/pgbench" -h "$folder" -S -n -c 2 -j 2 -t "${@:2}" postgres >/dev/null 2>&1
fi
