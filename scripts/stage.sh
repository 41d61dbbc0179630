#!/bin/sh
# Run one stage of a make target and say how long it took: stage.sh NAME COMMAND [ARGUMENT...]
set -u
name=$1
shift
begin=$(date +%s)
printf '%s\n' "== $name" >&2
"$@"
status=$?
seconds=$(($(date +%s) - begin))
if [ "$status" -eq 0 ]; then
    printf '%s\n' "== $name: done in $seconds s" >&2
else
    printf '%s\n' "== $name: FAILED after $seconds s (exit status $status)" >&2
fi
exit "$status"
