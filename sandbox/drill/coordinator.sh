#!/bin/sh
# The fleet's coordinator: looks at the board at each boundary, and writes what it has seen there to FOLDER/seen.
# usage: coordinator.sh FOLDER FLAW [TREE JOB CALL...], the last for FLAW "duplicate" alone
folder=$1 flaw=$2
shift 2
gate=$folder/bin/gate.sh
n=0
while sh "$gate" gate "look$n" >/dev/null; do
    if [ -e "$folder/board/redirected" ] && [ ! -e "$folder/seen/redirected" ]; then
        if [ "$flaw" = duplicate ]; then
            tree=$1
            shift
            (cd "$tree" && exec sh "$folder/bin/worker.sh" "$folder" none "$@") &
            until [ -e "$folder/pipes/$1.$!" ]; do sleep 0.05; done
        fi
        echo seen >"$folder/seen/redirected"
    fi
    sh "$gate" tick "look$n" 5
    sleep 0.3
    n=$((n + 1))
done
