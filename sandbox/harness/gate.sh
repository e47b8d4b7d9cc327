#!/bin/sh
# The gate and the tick for a shell: the same answers as gate.py, without a fork where it can.
#   gate.sh gate [NAME]            exit 0 go on, 2 stop (reason on stderr); blocks while PAUSE holds
#   gate.sh tick [NAME [TOKENS]]   a call has ended
# Only what POSIX sh has built in, for it runs thousands of times.
verb=${1:-gate} name=${2:--} tokens=${3:-0}
[ -n "${AGENTBOX_CONTROL-}" ] || exit 0
case $name in *[!A-Za-z0-9._:-]*) name=other ;; esac
case $tokens in '' | *[!0-9]*) tokens=0 ;; esac
ctl=${AGENTBOX_CONTROL%/*} run=${AGENTBOX_CONTROL%/ctl/*}
home=${run%/runs/*}

mark() {
    [ -n "${AGENTBOX_BEAT-}" ] || return 0
    { [ ! -L "$AGENTBOX_BEAT" ] && { [ -f "$AGENTBOX_BEAT" ] || [ ! -e "$AGENTBOX_BEAT" ]; }; } || return 0
    if now; then
        printf '%s %s %s %s %s\n' "$at" "$1" "$2" "$name" "$tokens" >>"$AGENTBOX_BEAT"
    else
        date "+%s.%3N $1 $2 $name $tokens" >>"$AGENTBOX_BEAT"
    fi 2>/dev/null || :
}

# Sets the time, seconds since 1970, without a fork; fails where it can't. A container may have an uptime of its own,
# and is not given AGENTBOX_BOOT.
now() {
    case ${AGENTBOX_BOOT-} in '' | *[!0-9]*) return 1 ;; esac
    read -r at line 2>/dev/null </proc/uptime || return 1
    case $at in [1-9]*.[0-9][0-9]) ;; *) return 1 ;; esac
    at=$((AGENTBOX_BOOT + ${at%.*}${at#*.}))
    at=${at%??}.${at#"${at%??}"}
}

# Sets word, generation and reason from an order's file; what can't be trusted is STOP.
look() {
    word=STOP generation=0 reason="${1##*/}: not a regular file"
    if [ -L "$1" ] || { [ -e "$1" ] && [ ! -f "$1" ]; }; then return; fi
    reason="${1##*/}: No such file or directory"
    [ -e "$1" ] || return
    reason="${1##*/}: cannot be read"
    [ -r "$1" ] || return
    # Mine in a directory of mine, or the longer way: root's, or of the directory's owner.
    if ! { [ -O "$1" ] && [ -O "${1%/*}" ]; }; then
        owner=$(stat -c %u "$1")
        reason="${1##*/}: owned by uid $owner"
        [ "$owner" = 0 ] || [ "$owner" = "$(stat -c %u "${1%/*}")" ] || return
    fi
    first= second= reason=
    {
        IFS= read -r first || :
        case $first in
            "PAUSE "* | "STOP "*)
                while IFS= read -r line; do
                    case $line in "reason: "*) second=${line#reason: } && break ;; esac
                done
                ;;
            "RUN "*) ;;
            *) reason="${1##*/}: holds no order" && return ;;
        esac
    } <"$1"
    number=${first#* }
    case $number in
        '' | *[!0-9]* | ???????????????????*) reason="${1##*/}: holds no order" && return ;;
    esac
    word=${first%% *} generation=$number reason=$second
}

if [ "$verb" = tick ]; then
    mark tick 0
    exit 0
fi
# Sets word, generation and reason to the stricter order of run and task; an emergency stop comes before both.
standing() {
    if [ -e "$home/EMERGENCY_STOP" ] || [ -L "$home/EMERGENCY_STOP" ]; then
        word=STOP generation=0 reason="the emergency stop is on"
        return
    fi
    look "$AGENTBOX_CONTROL"
    if [ "$word" = STOP ] || [ -z "${AGENTBOX_TASK_ID-}" ]; then return; fi
    run_word=$word run_generation=$generation run_reason=$reason
    look "$ctl/tasks/$AGENTBOX_TASK_ID"
    generation=$run_generation
    if [ "$word" != STOP ] && [ "$run_word" = PAUSE ]; then
        word=PAUSE reason=$run_reason
    fi
}

held=
while :; do
    standing
    if [ "$word" = RUN ]; then
        # Marked, then looked at again: whoever orders and then reads the marks sees the call, or it sees the order.
        mark call "$generation"
        standing
        held=
    fi
    case $word in
        STOP)
            mark stop "$generation"
            printf 'agentbox: stop: %s\n' "$reason" >&2
            exit 2
            ;;
        RUN) break ;;
    esac
    [ -n "$held" ] || mark quiet "$generation"
    held=1
    sleep 0.1
done
steer=$run/steer/${AGENTBOX_TASK_ID-}.jsonl
if [ -n "${AGENTBOX_BEAT-}" ] && [ -f "$steer" ] && [ ! -L "$steer" ]; then
    number=0
    set -C
    while IFS= read -r line; do
        # Not `:`, for a failed redirection of a special built-in ends the shell.
        if { true >"$AGENTBOX_BEAT.steer.$number"; } 2>/dev/null; then printf '%s\n' "$line"; fi
        number=$((number + 1))
    done <"$steer"
fi
exit 0
