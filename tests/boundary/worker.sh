#!/bin/sh
# A worker: passes the gate, makes a call of SECONDS that leaves one line in FILE, ticks, and so on, COUNT times.
# usage: worker.sh GATE FILE SECONDS COUNT
gate=$1 file=$2 seconds=$3 count=$4
done=0
while [ "$done" -lt "$count" ]; do
    delta=$(sh "$gate" gate "step$done") || exit 0
    [ -z "$delta" ] || printf 'delta %s\n' "$delta" >>"$file"
    sleep "$seconds"
    printf 'step %s\n' "$done" >>"$file"
    sh "$gate" tick "step$done" 10
    done=$((done + 1))
done
sleep 1000
