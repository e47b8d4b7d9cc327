#!/bin/sh
# A worker in its worktree: passes the gate, makes a call of SECONDS that changes a file of the tree, leaves one line
# in FILE (and one for a signal) and commits with COMMIT, ticks, and so on, COUNT times.
# usage: worker.sh GATE FILE SECONDS COUNT COMMIT
for number in HUP INT QUIT TERM USR1 USR2 CONT; do
    trap 'printf "signal\n" >>"$file"' "$number"
done
gate=$1 file=$2 seconds=$3 count=$4 commit=$5
done=0
while [ "$done" -lt "$count" ]; do
    delta=$(sh "$gate" gate "step$done") || exit 0
    [ -z "$delta" ] || printf 'delta %s\n' "$delta" >>"$file"
    printf 'half of step %s\n' "$done" >>work
    sleep "$seconds"
    printf 'step %s\n' "$done" >>work
    git add work && eval "$commit" || exit 1
    printf 'step %s\n' "$done" >>"$file"
    sh "$gate" tick "step$done" 10
    done=$((done + 1))
done
sleep 1000
