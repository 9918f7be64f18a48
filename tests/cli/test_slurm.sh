#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_slurm.sh - proves that attest run --jobs 'srun ...' works with Slurm: a controller, a node
# and munge of its own on this machine, as any user. Workers run concurrently, one killed by Slurm
# is replaced, and steps that outlive their parent lose nothing.
#
# usage: test_slurm.sh SOURCE_DIR BUILD_DIR
for program in munged slurmctld slurmd srun; do
    if ! command -v $program >/dev/null; then
        echo "skip no $program (Debian: slurmctld, slurmd, munge)"
        exit 77
    fi
done
. "$(dirname "$0")/cli.sh"

unset ATTN_DRIVER VGPU_CHECKS
few="--stage parity --device cpu --seed 1 --variant ^cpu_(row|tile)_"
srun="srun -N1 -n1 -c1 --quiet"

# ---- a cluster -------------------------------------------------------------------------------

SLURM_CONF=$work/slurm.conf
export SLURM_CONF
node=$(hostname -s)
port=$((20000 + $$ % 20000))
mkdir spool
(umask 077 && head -c 128 /dev/urandom >key)
cat >"$SLURM_CONF" <<CONF
ClusterName=attest
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge
StateSaveLocation=$work
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
end_cluster() {
    for program in slurmd slurmctld munged; do
        [ -e "$work/$program.pid" ] && kill "$(cat "$work/$program.pid")" 2>/dev/null
    done
    sleep 1
    rm -rf "$work"
}
trap end_cluster EXIT
munged --force --key-file="$work/key" --socket="$work/munge" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/seed" 2>/dev/null
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
tries=0
until sinfo -h -o %t 2>/dev/null | grep -q idle || [ $tries -eq 60 ]; do
    sleep 0.5
    tries=$((tries + 1))
done
if ! $srun true; then
    tail -n 5 munged.log slurmctld.log slurmd.log
    bad "Slurm" "no step can be started"
    finish
fi

# until_unit: the run in the background has written its first unit.
until_unit() {
    tries=0
    while [ -z "$(ls pack/units 2>/dev/null)" ] && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
}

# ---- workers ---------------------------------------------------------------------------------

# shellcheck disable=SC2016 # the worker's shell expands it
accepts "three workers" run $few --out jobs --workers 3 \
    --jobs "$srun"' sh -c '\''echo $SLURM_JOB_ID >>'"$work"'/ids; exec "$@"'\'' sh'
says "three workers: the verdict" "PASS (partial: less than all stages"
accepts "three workers: verified" verify jobs
holds "a job for each part and the plan" \
    [ "$(sort -u ids | wc -l)" -eq $(($(ls jobs/units | wc -l) + 1)) ]

"$attest" run $few --out pack --workers 2 --jobs "$srun" >run_stdout 2>run_stderr &
runner=$!
until_unit
scancel --state=running --user="$(id -un)"
wait $runner
holds "Slurm kills two jobs: they are replaced" [ $? -eq 0 ]
holds "Slurm did kill them" grep -q REQUEST_KILL_JOB slurmctld.log
accepts "Slurm kills two jobs: verified" verify pack

rm -rf pack
"$attest" run $few --out pack --workers 2 --jobs "$srun" >run_stdout 2>run_stderr &
runner=$!
until_unit
kill -9 $runner
wait $runner 2>/dev/null
kept=$(ls pack/units)
tries=0 # jobs end their parts
while run run --resume --out pack --jobs "$srun" && [ "$code" -eq 3 ] && [ $tries -lt 100 ]; do
    sleep 0.2
    tries=$((tries + 1))
done
holds "kill -9 of the parent: goes on" [ "$code" -eq 0 ]
for unit in $kept; do
    [ -e "pack/units/$unit" ] || bad "kill -9 of the parent: $unit" "it is lost"
done
accepts "kill -9 of the parent: verified" verify pack

finish
