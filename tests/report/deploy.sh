#!/bin/sh
# usage: deploy.sh GATE NAME...
# A deployment that passes the gate before each step NAME and ticks after it. Step `hold` waits for the file `go-on`.
# Works in the current directory: NAME.started, NAME.done, `ready` once `hold` was reached; an attached and a detached
# heartbeat beside it.
gate=$1
shift
sh -c 'while :; do printf . >>beat-attached; sleep 0.05; done' &
setsid sh -c 'while :; do printf . >>beat-detached; sleep 0.05; done' &
for step; do
    sh "$gate" gate "$step" || exit 3
    : >"$step.started"
    if [ "$step" = hold ]; then
        : >ready
        while ! [ -e go-on ]; do sleep 0.02; done
    fi
    : >"$step.done"
    sh "$gate" tick "$step" 7
done
: >ready
wait
