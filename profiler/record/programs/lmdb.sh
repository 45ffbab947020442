#!/usr/bin/env bash
# Runs a program (lmdb.c) in a control group of its own, with a limit of memory that includes the pages of its files.
#
#   lmdb.sh PROGRAM FOLDER READS MEGABYTES
set -euo pipefail

program=$1
folder=$2
reads=$3
limit=$(($4 << 20))
if [ -e /sys/fs/cgroup/cgroup.controllers ] && grep -qw memory /sys/fs/cgroup/cgroup.controllers; then
    group=/sys/fs/cgroup/quell-record-$$
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    file=memory.max
else
    group=/sys/fs/cgroup/memory/quell-record-$$
    file=memory.limit_in_bytes
fi
# An earlier run may have left pages in memory, which are not charged to this group.
[ -e "$folder/data.mdb" ] || "$program" "$folder" fill
dd if="$folder/data.mdb" iflag=nocache count=0 status=none
mkdir "$group"
end() {
    echo $$ >"$(dirname "$group")/cgroup.procs" 2>/dev/null || true
    rmdir "$group" 2>/dev/null || true
}
trap end EXIT
trap 'exit 1' INT TERM
echo "$limit" >"$group/$file"
# The group contains this shell and the program. The shell leaves it before the group is removed.
echo $$ >"$group/cgroup.procs"
"$program" "$folder" "$reads"
