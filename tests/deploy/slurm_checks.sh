# What slurm_test.sh has run in the root with Slurm.
set -euo pipefail

. ./expectations.sh

show() {
  tail --lines=20 tmp/*.log "$home"/*.out 2>/dev/null
}

as_user() {
  (cd "$home" && setpriv --reuid=user --regid=user --clear-groups env HOME="$home" "$@")
}

idle() {
  [[ $(sinfo --noheader --format='%D %t') == "2 idle" ]]
}

no_job() {
  [[ -z $(squeue --noheader) ]]
}

nothing_runs() {
  ! pgrep paramshard && [[ -z $(compgen -G '/run/paramshard-jobs/paramshard-*') ]]
}

ended_as() {
  scontrol show job "$1" | grep --quiet "JobState=$2"
}

submit() {
  as_user sbatch --parsable --output="$home/%j.out" "$@"
}

useradd --create-home user
home=$(getent passwd user | cut --delimiter=: --fields=6)
readonly home
install --directory --owner=munge --group=munge --mode=755 /run/munge
install --directory --owner=munge --group=munge --mode=700 /etc/munge /var/log/munge /var/lib/munge
dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none
chown munge:munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
setpriv --reuid=munge --regid=munge --clear-groups munged
mkdir -p /var/spool/slurmctld /var/spool/slurmd-node0 /var/spool/slurmd-node1
slurmctld
expect "one slurmd starts" slurmd -N node0
expect "another does" slurmd -N node1
expect "two nodes are idle" await 30 idle
readonly script=/etc/slurm/paramshard.sbatch

echo "-- a job of one node, two ranks"
install --directory --owner=user --mode=700 "$home/saves"
export PARAMSHARD_DEVICE=cpu:0,cpu:1 PARAMSHARD_SAVE_DIR=$home/saves
job=$(submit $script paramshard-digits --rank=RANK --world-size=2 --steps=40)
expect "it ends" await 60 no_job
expect "in order" ended_as "$job" COMPLETED
expect "the daemon has served and drained" grep --quiet 'info stopped' "$home/$job.out"
expect "with a save" compgen -G "$home/saves/digits/step-*"
expect "nothing is left running" await 10 nothing_runs

echo "-- a job whose trainer fails"
job=$(submit $script false)
expect "it ends" await 60 no_job
expect "as failed" ended_as "$job" FAILED
expect "nothing is left running" await 10 nothing_runs

echo "-- a job that is cancelled in its training"
unset PARAMSHARD_SAVE_DIR
training() {
  pgrep paramshard-digi
}
job=$(submit $script paramshard-digits --rank=RANK --world-size=2 --epochs=100000 --attach-timeout=5)
expect "it trains" await 30 training
scancel "$job"
expect "it ends" await 60 no_job
expect "nothing is left running" await 30 nothing_runs

echo "-- a job that is told to end"
export PARAMSHARD_SAVE_DIR=$home/saves
job=$(submit $script paramshard-digits --rank=RANK --world-size=2 --model=told --epochs=100000 --attach-timeout=5)
expect "it trains" await 30 training
scancel --batch --signal=TERM "$job"
expect "it ends" await 60 no_job
expect "with a save" compgen -G "$home/saves/told/step-*"
expect "nothing is left running" await 10 nothing_runs
unset PARAMSHARD_SAVE_DIR

echo "-- a world of two nodes"
export PARAMSHARD_DEVICE=cpu:0 PARAMSHARD_CLUSTER_ADDRESS=127.0.0.1:7777
job=$(submit --nodes=2 $script paramshard-digits --rank=RANK --world-size=2 --steps=40)
expect "it ends" await 60 no_job
expect "in order" ended_as "$job" COMPLETED
expect "two daemons have served" test "$(grep --count 'info serving.*node=./2' "$home/$job.out")" = 2
expect "nothing is left running" await 10 nothing_runs

echo "-- a daemon that outlives its job"
job=$(submit --wrap='
  export PARAMSHARD_SOCKET_DIR=/run/paramshard-jobs/paramshard-$SLURM_JOB_ID-$SLURMD_NODENAME/sockets
  setsid paramshardd &
  until paramshardctl version; do sleep 0.1; done')
expect "the job ends" await 30 no_job
expect "nothing is left running" await 10 nothing_runs
