# shellcheck shell=bash disable=SC2154 # the caller sets the variables
# Sourced by run_wt103.sh and scripts/run_*.sh: starts train.py, eval.py and generate.py with the settings of a data set.
# The caller sets `name` (of the data set), `data` (flags that name its text) and `sizes`, whose settings are the presets
# NAME-SIZE of txl/presets; then it calls `txl_run "$@"`.

root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/environment.sh disable=SC1091 # without -x it is not followed
source "$root/scripts/environment.sh"

usage() {
    cat >&2 <<USAGE
usage: ${first_line:-}$script data                     [flags of data_utils.download]
       $script train|eval|generate  $(tr ' ' '|' <<<"${sizes[*]}")  [flags of train.py|eval.py|generate.py]

Flags at the end override these configurations. The text is read from ${data[1]#"$root/"}$text_is
(another folder with --data); data downloads it there. The run is saved in runs/${name}_SIZE.

train uses all GPUs of the machine, or NPROC processes. On several hosts, start the same command on each with
  NNODES (how many hosts)   NODE_RANK (0 on the first)   MASTER_ADDR (the first one's name)   MASTER_PORT (29500)
and a run folder that all of them share. torchrun restarts crashed processes up to MAX_RESTARTS times (3).
With NNODES=2:4 hosts but the first may leave and join: the others save, and all that are there resume the run.
USAGE
    exit "${1:-2}"
}

refuse() {
    echo "$script: ${*//[[:cntrl:]]/ }" >&2
    exit 2
}

# number NAME LEAST [MOST]: the variable, if set, must be a whole number of at least LEAST
number() {
    local value=${!1:-} most=${3:-999999}
    [[ -n $value ]] || return 0
    if [[ ! $value =~ ^[0-9]{1,6}$ ]] || ((10#$value < $2 || 10#$value > most)); then
        refuse "$1=$value: must be a number, at least $2${3:+ and at most $3}"
    fi
}

# among WORD WORD...: true if the first is one of the others
among() {
    local word
    for word in "${@:2}"; do
        [[ $word != "$1" ]] || return 0
    done
    return 1
}

# has_flag NAME WORD...: true if --NAME is among the words
has_flag() {
    local word
    for word in "${@:2}"; do
        [[ $word != "--$1" && $word != "--$1="* ]] || return 0
    done
    return 1
}

# exec the training, in one process or in several under torchrun
launch() {
    number NPROC 1
    number NODE_RANK 0
    number MASTER_PORT 1 65535
    number MAX_RESTARTS 0
    number TORCH_ELASTIC_SHUTDOWN_TIMEOUT 1
    local nnodes=${NNODES:-1} nproc=${NPROC:-} max_restarts=3
    [[ $nnodes =~ ^([0-9]{1,6}:)?[0-9]{1,6}$ ]] || refuse "NNODES=$nnodes: must be a number of hosts, or a range like 2:4"
    local least=$((10#${nnodes%:*})) most=$((10#${nnodes#*:}))
    ((1 <= least && least <= most)) || refuse "NNODES=$nnodes: must be at least 1, and the smaller number first"
    # torchrun kills processes 30 s after a signal, too soon for a large checkpoint (from PyTorch 2.12 on)
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}
    [ -n "$nproc" ] || nproc=$("$python" -c 'import torch; print(torch.cuda.device_count())')
    [ "$nproc" -ge 1 ] || nproc=1
    if [ "$most" -eq 1 ] && [ "$nproc" -eq 1 ]; then
        exec "$python" "$@"
    fi
    local rendezvous=(--standalone)
    if [ "$most" -gt 1 ]; then
        # a torchrun that shares its store names it only once, and a host that joins later would wait for the name
        export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
        local is_host=false
        [ -n "${NODE_RANK:-}" ] || refuse "NODE_RANK: NNODES is set, so it must say which host this is, 0 on the first"
        [ -n "${MASTER_ADDR:-}" ] || refuse "MASTER_ADDR: NNODES is set, so it must name the first host"
        [ "$NODE_RANK" -lt "$most" ] || refuse "NODE_RANK=$NODE_RANK: hosts are counted from 0 to $((most - 1))"
        [ "$NODE_RANK" -ne 0 ] || is_host=true
        rendezvous=(--nnodes "$nnodes" --rdzv_backend c10d "--rdzv_id=${RUN_ID:-txl}"
            --rdzv_conf "is_host=$is_host${RDZV_CONF:+,$RDZV_CONF}" "--rdzv_endpoint=$MASTER_ADDR:${MASTER_PORT:-29500}")
    fi
    if [ "$least" -lt "$most" ]; then
        max_restarts=100 # one for each host that leaves
        has_flag resume "$@" || set -- "$@" --resume # to torchrun a host that joins is no restart
    fi
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    exec "$python" -m txl.programs.train_many "${rendezvous[@]}" --nproc_per_node "$nproc" \
        --max_restarts "${MAX_RESTARTS:-$max_restarts}" --signals_to_handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 "$@"
}

# txl_run data FLAG... | train|eval|generate SIZE FLAG...
txl_run() {
    local what=${1:-} size=${2:-}
    case $what in
    -h | --help | help) usage 0 2>&1 ;;
    data)
        shift
        txl_python "$root" requirements.txt
        PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m data_utils.download "$name" --out "${data[1]}" "$@"
        ;;
    train | eval | generate) ;;
    estimate) refuse "estimate: is gone; the first lines of a training's log give its memory, and docs/scaling.md says what to set" ;;
    '') usage ;;
    *) refuse "$what: no such command; give one of ${first_line:+demo, try, }data, train, eval, generate ($script --help)" ;;
    esac
    [[ -n $size ]] || refuse "$what: of which size? give one of ${sizes[*]}"
    among "$size" "${sizes[@]}" || refuse "$what $size: no such size; give one of ${sizes[*]}"
    shift 2
    txl_python "$root" requirements.txt
    local flags=(--work_dir "$root/runs/${name}_$size" --preset "$name-$size")
    if [ "$what" = train ]; then
        launch "$root/train.py" "${flags[@]}" "${data[@]}" "$@"
    fi
    exec "$python" "$root/$what.py" "${flags[@]}" "$@"
}
