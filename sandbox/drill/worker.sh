#!/bin/sh
# A worker of the drill: boundary, call, commit, tick, and so on until it is told to stop.
# usage: worker.sh FOLDER FLAW JOB SECONDS...: the calls' lengths, taken in turn; FLAW: what it does wrong, or none
# Each call writes `TIME start NAME` to FOLDER/calls/JOB by itself: a trace that neither gate nor tick has made.
folder=$1 flaw=$2 job=$3
shift 3
gate=$folder/bin/gate.sh
calls=$folder/calls/$job
n=0

say() { echo "$(date +%s.%3N) $*" >>"$calls"; }

call() { # NAME SECONDS
    say start "$1"
    echo "$1" >>"work-$job"
    sleep "$2"
    say end "$1"
}

save() {
    if [ "$flaw" = stash ] && [ "$n" = 0 ]; then
        git -c core.hooksPath=/dev/null stash push -q --include-untracked
    elif [ -e "$folder/bin/checkpoint.sh" ] && [ $((n % 8)) = 1 ]; then
        sh "$folder/bin/checkpoint.sh" "step $n" >/dev/null
    else
        git add -A && git -c core.hooksPath=/dev/null commit -q -m "step $n"
    fi
    [ "$n" = 0 ] || return 0
    git push -q origin HEAD 2>/dev/null
    [ "$flaw" != push ] || git push -q --no-verify origin HEAD:main
}

leave() { # the gate has said stop
    case $flaw in
        late) call "$job-late" 0.2 ;;
        stubborn) while :; do sleep 1; done ;;
    esac
    exit 0
}

sh "$folder/bin/heart.sh" "$folder/hearts/$job.attached" &
setsid sh "$folder/bin/heart.sh" "$folder/hearts/$job.setsid" &
if [ "$flaw" = outside ]; then
    read -r procs <"$folder/bin/outside"
    setsid sh -c 'echo $$ >"$0" && exec sh "$@"' "$procs" "$folder/bin/heart.sh" "$folder/hearts/$job.outside" &
fi
pipe=$folder/pipes/$job.$$
mkfifo "$pipe"
sh "$folder/bin/server.sh" <"$pipe" &
exec 3>"$pipe"
# Neither is to be ended by the abort before it comes to its boundary; their companions are.
case $flaw in late | stubborn) trap '' TERM ;; esac

while [ "$flaw" = no-gate ]; do
    say start "$job-$n"
    sleep 0.3
    [ ! -e "$folder/board/resumed" ] || exit 0
    n=$((n + 1))
done
while :; do
    delta=$(sh "$gate" gate "$job-$n") || leave
    [ -z "$delta" ] || say delta
    call "$job-$n" "$1"
    save
    sh "$gate" tick "$job-$n" 100
    seconds=$1
    shift
    set -- "$@" "$seconds"
    n=$((n + 1))
done
