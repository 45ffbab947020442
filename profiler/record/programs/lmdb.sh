#!/usr/bin/env bash
# A program in a control group of its own that may use so many megabytes of memory, the pages of its files among them.
#
#   lmdb.sh PROGRAM FOLDER SECONDS MEGABYTES: what PROGRAM (lmdb.c) prints. Ends with 3 where no group can be made.
set -euo pipefail

program=$1
folder=$2
seconds=$3
limit=$(($4 << 20))
none() {
    echo "no control group with a limit of memory can be made here: $*" >&2
    exit 3
}
if [ -e /sys/fs/cgroup/cgroup.controllers ] && grep -qw memory /sys/fs/cgroup/cgroup.controllers; then
    group=/sys/fs/cgroup/quell-record-$$
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    file=memory.max
elif [ -d /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/memory/quell-record-$$
    file=memory.limit_in_bytes
else
    none "there is no controller"
fi
# An earlier run may have left pages in memory; no program here would be charged for them.
[ -e "$folder/data.mdb" ] || "$program" "$folder" fill
dd if="$folder/data.mdb" iflag=nocache count=0 status=none
mkdir "$group" 2>/dev/null || none "$group"
end() {
    echo $$ >"$(dirname "$group")/cgroup.procs" 2>/dev/null || true
    rmdir "$group" 2>/dev/null || true
}
trap end EXIT
trap 'exit 1' INT TERM
echo "$limit" 2>/dev/null >"$group/$file" || none "$group/$file"
# The group is this shell's and the program's; the shell goes back before it is removed.
echo $$ >"$group/cgroup.procs"
"$program" "$folder" "$seconds"
