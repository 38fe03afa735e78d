# Checks that slurm_test.sh runs in the root with Slurm.
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

# node N: a machine of its own, as far as its network and its name go, with a slurmd.
node() {
  local name=node$1 network
  ip netns add "$name"
  for network in nodes fabric; do
    ip link add "$network-$1" type veth peer name "$network" netns "$name"
    ip link set "$network-$1" master "$network" up
  done
  nsenter --net="/run/netns/$name" unshare --uts bash -ec '
    hostname "node$0"
    ip link set lo up
    ip address add "10.9.9.1$0/24" dev nodes
    ip address add "10.9.8.1$0/24" dev fabric
    ip link set nodes up
    ip link set fabric up
    exec slurmd' "$1"
}
expect "one slurmd starts" node 0
expect "another does" node 1
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
# has_commits MODEL: before the first commit there is nothing to save.
has_commits() {
  (($(as_user PARAMSHARD_SOCKET_DIR="/run/paramshard-jobs/paramshard-$job-node0/sockets" paramshardctl models |
    awk -v model="$1" '$1 == model {print $7}') > 0))
}
expect "it makes commits" await 30 has_commits told
scancel --batch --signal=TERM "$job"
expect "it ends" await 60 no_job
expect "with a save" compgen -G "$home/saves/told/step-*"
expect "nothing is left running" await 10 nothing_runs
unset PARAMSHARD_SAVE_DIR

echo "-- a world of two nodes, which have networks of their own"
install --directory --owner=user --mode=700 "$home/tls"
install --owner=user --mode=400 --target-directory="$home/tls" /tls/*
# Says which addresses are listened on where it runs, and trains.
cat >"$home/trainer" <<'TRAINER'
#!/bin/bash
ss --no-header --listening --tcp --numeric | sed "s/^/on $SLURMD_NODENAME: /"
exec paramshard-digits "$@"
TRAINER
chmod 755 "$home/trainer"
# listens NODE ADDRESS: for bytes. Port 7777 is the cluster's.
listens() {
  grep "^on $1: .* $2:[0-9]* " "$home/$job.out" | grep --quiet --invert-match ":7777 "
}
export PARAMSHARD_DEVICE=cpu:0 PARAMSHARD_TRUSTED_DATA_NETWORK=on PARAMSHARD_SAVE_DIR=$home/saves TLS_DIR=$home/tls
job=$(submit --nodes=2 $script "$home/trainer" --rank=RANK --world-size=2 --model=world --steps=40)
expect "it ends" await 60 no_job
expect "in order" ended_as "$job" COMPLETED
expect "two daemons have served" test "$(grep --count 'info serving.*node=./2' "$home/$job.out")" = 2
expect "node 0 is called at its name" grep --quiet 'joining the world node=1/2 coordinator=node0:7777' "$home/$job.out"
expect "it listens for bytes on its own address" listens node0 10.9.9.10
expect "node 1 does on its own" listens node1 10.9.9.11
expect "with a save" compgen -G "$home/saves/world/step-*"
expect "nothing is left running" await 10 nothing_runs

echo "-- a world that goes on from the save, over another network"
export DATA_INTERFACE=fabric PARAMSHARD_RESTORE=latest
job=$(submit --nodes=2 $script "$home/trainer" --rank=RANK --world-size=2 --model=world --steps=60)
expect "it ends" await 60 no_job
expect "in order" ended_as "$job" COMPLETED
restored=$(grep --count 'model restored.*step=4[0-9]* ' "$home/$job.out" || true)
expect "both daemons begin with the save" test "$restored" = 2
expect "node 0 listens for bytes there" listens node0 10.9.8.10
expect "node 1 does, too" listens node1 10.9.8.11
expect "nothing is left running" await 10 nothing_runs

echo "-- a world that loses a daemon with its keeper"
unset PARAMSHARD_RESTORE
job=$(submit --nodes=2 $script "$home/trainer" --rank=RANK --world-size=2 --model=lost --epochs=100000 \
  --attach-timeout=600)
expect "it trains" await 30 has_commits lost
kill -KILL $(grep --files-with-matches --text "PARAMSHARD_SOCKET_DIR=.*$job-node1/" $(
  pgrep --exact paramshardd | sed 's,.*,/proc/&/environ,') | cut --delimiter=/ --fields=3)
expect "it ends" await 60 no_job
expect "as failed" ended_as "$job" FAILED
expect "with all daemons" test "$(grep --count 'info serving' "$home/$job.out")" = 2
expect "nothing is left running" await 10 nothing_runs

# fails_as WHY: a job of two nodes does.
fails_as() {
  job=$(submit --nodes=2 $script "$home/trainer" --rank=RANK --world-size=2 --model=world --steps=80)
  expect "it ends" await 60 no_job
  expect "as failed" ended_as "$job" FAILED
  expect "and says why" grep --quiet "$1" "$home/$job.out"
  expect "nothing is left running" await 10 nothing_runs
}
echo "-- a world with a network that there is not"
DATA_INTERFACE=fabrics fails_as 'node[01]: want an address of fabrics, got none'
echo "-- a world that is to have one address on all nodes"
PARAMSHARD_DATA_ADDRESS=10.9.9.10 fails_as "is one machine's"
echo "-- a world whose nodes have each other's certificates"
install --directory --owner=user --mode=700 "$home/tls/swapped"
for end in pem key; do
  ln -s "$home/tls/node1.$end" "$home/tls/swapped/node0.$end"
  ln -s "$home/tls/node0.$end" "$home/tls/swapped/node1.$end"
done
ln -s "$home/tls/ca.pem" "$home/tls/swapped/ca.pem"
TLS_DIR=$home/tls/swapped fails_as 'start failed.*node/'
unset PARAMSHARD_SAVE_DIR DATA_INTERFACE TLS_DIR

echo "-- a daemon that outlives its job"
job=$(submit --wrap='
  export PARAMSHARD_SOCKET_DIR=/run/paramshard-jobs/paramshard-$SLURM_JOB_ID-$SLURMD_NODENAME/sockets
  setsid paramshardd &
  until paramshardctl version; do sleep 0.1; done')
expect "the job ends" await 30 no_job
expect "nothing is left running" await 10 nothing_runs
