#!/bin/sh
# A fake nvidia-cuda-mps-control for tests. Beside it: `calls` records what it was asked, `behavior` says what it does wrong (die, hang,
# hang-terminate, no-server), `clients` holds the pids of its clients. Its own pid is in the pipe directory.
here=$(dirname "$0")
behavior=$(cat "$here/behavior" 2>/dev/null)
echo "$*" >> "$here/calls"
pid=$CUDA_MPS_PIPE_DIRECTORY/pid
alive() { [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }

case " $* " in
*" -f "*)
    [ "$behavior" = die ] && { echo "An instance of this daemon is already running" >&2; exit 1; }
    for word in "$@"; do config=$word; done
    for wanted in 'schema_version = "1.0"' '[servers.kai]' '[features.memacct]'; do
        grep -qF "$wanted" "$config" || { echo "no $wanted" >&2; exit 2; }
    done
    cp "$config" "$here/config"
    touch "$CUDA_MPS_PIPE_DIRECTORY/control"
    echo $$ > "$pid"
    trap 'rm -f "$pid" "$CUDA_MPS_PIPE_DIRECTORY/control"; exit 0' TERM
    while :; do sleep 0.05; done
    ;;
esac

[ "$behavior" = hang ] && exec sleep 60
alive || { echo "Cannot find MPS control daemon process"; exit 1; }
case " $* " in
*"server list"*) [ "$behavior" = no-server ] || echo "kai,0,$(cat "$pid"),Ready,$CUDA_MPS_PIPE_DIRECTORY/kai,all,-" ;;
*"namespace create"*) mkdir -p "$CUDA_MPS_PIPE_DIRECTORY/kai/$5" ;;
*"namespace set"*) [ -d "$CUDA_MPS_PIPE_DIRECTORY/kai/$5" ] || { echo "no such namespace" >&2; exit 3; } ;;
*"namespace delete"*) rmdir "$CUDA_MPS_PIPE_DIRECTORY/kai/$5" 2>/dev/null || { echo "no such namespace" >&2; exit 3; } ;;
*"client list"*) [ ! -e "$here/clients" ] || sed 's/$/,kai,0,p_x,program/' "$here/clients" ;;
*"client terminate"*) [ "$behavior" != hang-terminate ] || exec sleep 60 ;;
*" -q "*) kill "$(cat "$pid")" ;;
esac
exit 0
