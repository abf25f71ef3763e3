#!/usr/bin/env bash
# Run scripts/slurm.sbatch under a real Slurm with two nodes on this machine: the time limit's signal, a requeue, the
# daemon of a node that is killed and returns, and the end. Takes about six minutes, needs root and, on Debian,
#   apt-get install slurm-wlm munge
# Everything is written to a new folder in /tmp, all daemons are its own and are stopped at the end. PYTHON names a
# Python with the packages of requirements.txt.
set -euo pipefail

repository=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)
for program in munged slurmctld slurmd unshare; do
    command -v $program >/dev/null && continue
    echo "$0: no program $program; on Debian: apt-get install slurm-wlm munge" >&2
    exit 2
done
[ "$(id -u)" -eq 0 ] || { echo "$0: needs root, to start slurmd; run it in a container or a virtual machine" >&2; exit 2; }
if [ -z "${TRY_SLURM:-}" ]; then # in a mount namespace, where /etc/hosts can name the nodes
    TRY_SLURM=$(mktemp -d /tmp/try_slurm.XXXXXX) exec unshare --mount "$0"
fi
place=$TRY_SLURM
mkdir -p "$place"/{text,state,log,spool_node1,spool_node2}
printf '127.0.0.1 localhost %s node1 node2\n' "$(hostname)" >"$place/hosts"
mount --bind "$place/hosts" /etc/hosts

# Slurm: a controller and two nodes
head -c 1024 /dev/urandom >"$place/munge.key"
chmod 600 "$place/munge.key"
cat >"$place/slurm.conf" <<CONF
ClusterName=try
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool_%n
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd_%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
KillWait=30
NodeName=node1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=17001 CPUs=2
NodeName=node2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=17002 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$place/slurm.conf
daemons=()
finish() {
    scancel --quiet --state=RUNNING 2>/dev/null || true
    sleep 3
    for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
    echo "logs: $place"
}
trap finish EXIT
start_node() { # NAME
    slurmd -D -N "$1" -f "$SLURM_CONF" >>"$place/log/$1" 2>&1 &
    daemons+=($!)
}
munged --foreground --force --key-file "$place/munge.key" --socket "$place/munge.socket" --num-threads 2 \
    --pid-file "$place/munged.pid" --log-file "$place/log/munged" --seed-file "$place/seed" >/dev/null 2>&1 &
daemons+=($!)
sleep 1
slurmctld -D -f "$SLURM_CONF" >"$place/log/slurmctld" 2>&1 &
daemons+=($!)
start_node node1
start_node node2
node2=$!

say() { echo "$(date +%T) $*"; }
# until_is SECONDS WHAT COMMAND...: wait for a command to succeed
until_is() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $end ]; then
            say "not within the time: $what"
            tail -n 40 "$place"/log/* "$place"/job 2>/dev/null
            exit 1
        fi
        sleep 0.5
    done
    say "$what"
}
restarts() { scontrol show job "$job" | grep -q "Restarts=$1 "; }
completed() { scontrol show job "$job" | grep -q JobState=COMPLETED; }
idle() { [ "$(sinfo --noheader --format %D --states idle)" = 2 ]; }
starts() { [ "$(grep -c '"kind": "start"' "$place/run/metrics.jsonl")" -ge "$1" ]; }
last_step() { grep '"kind": "train"' "$place/run/metrics.jsonl" | tail -n 1 | grep -o '"step": [0-9]*' | grep -o '[0-9]*'; }
steps() { [ "$(last_step)" -ge "$1" ]; }
until_is 30 "two nodes are idle" idle
sinfo

# a tiny training that takes longer than the time limit of a minute
for split in train valid test; do
    for _ in {1..400}; do echo "one two three four five six seven eight nine ten"; done >"$place/text/$split.txt"
done
cd "$repository"
job=$(sbatch --parsable --nodes=2 --cpus-per-task=1 --time=1 --signal=B:TERM@30 --output="$place/job" scripts/slurm.sbatch \
    base --data "$place/text" --dataset text --work_dir "$place/run" --adaptive --cutoffs 4 6 --n_layer 1 --d_model 16 \
    --n_head 2 --d_head 8 --d_inner 16 --batch_size 4 --tgt_len 8 --mem_len 8 --eval_tgt_len 8 --max_step 10000 \
    --log_interval 10 --save_interval 100 --eval_interval 3000 --sample_length 0 --timeout_s 20)
say "job $job is submitted"
until_is 60 "it trains on two nodes" steps 1
scontrol show job "$job" | grep -E 'NodeList|TimeLimit|Restarts'
until_is 90 "the signal before the time limit: the run has saved" grep -q "stopped by SIGTERM" "$place/job"
until_is 60 "the job was requeued" restarts 1
scontrol update JobId="$job" TimeLimit=10
until_is 120 "it has resumed" starts 2
until_is 60 "it goes on" steps $(($(last_step) + 100))
say "the daemon of node2 is killed"
disown "$node2"
kill -9 "$node2"
until_is 120 "the job was requeued since node2 is down" restarts 2
sinfo
start_node node2
until_is 60 "node2 is back" idle
until_is 180 "the job has resumed" starts 3
until_is 300 "the job has ended" completed
scontrol show job "$job" | grep -oE 'Restarts=[0-9]+|ExitCode=[0-9:]+'
grep '"kind": "start"' "$place/run/metrics.jsonl" | grep -oE '"(resumed_from_step|world_size)": [a-z0-9]+' | paste - -
grep -h "End of training" "$place/job"
