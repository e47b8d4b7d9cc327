#!/bin/sh
# A heartbeat: one line in FILE every half second, for as long as it lives. usage: heart.sh FILE
while :; do
    echo beat >>"$1" || exit 1
    sleep 0.5
done
