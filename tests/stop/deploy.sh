#!/bin/sh
# Six steps of a deployment with two heartbeats, one attached and one detached. Step 3 waits for the file `go-on`.
# Works in the current directory: step-N.started, step-N.done, beat-NAME; `ready` once step 3 has been reached.

heartbeat='echo "$$ $(cut -d" " -f22 /proc/$$/stat)" > "pid-$1"; while :; do printf . >> "beat-$1"; sleep 0.02; done'

sh -c "$heartbeat" heartbeat attached &
setsid sh -c "$heartbeat" heartbeat main &

for step in 1 2 3 4 5 6; do
    : > "step-$step.started"
    if [ "$step" = 3 ]; then
        while ! [ -s beat-attached ] || ! [ -s beat-main ]; do sleep 0.01; done
        : > ready
        while ! [ -e go-on ]; do sleep 0.01; done
    fi
    : > "step-$step.done"
done
wait
