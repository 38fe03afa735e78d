# Checks that systemd_test.sh runs as a service, in the root that it has booted.
set -euo pipefail
. ./expectations.sh

show() {
  systemctl status --no-pager --full 'paramshardd*' || true
  journalctl --no-pager --lines=30
}

property() {
  systemctl show --property="$1" --value "${2-paramshardd}"
}

is() {
  [[ $(property "$1" "${3-paramshardd}") == $2 ]]
}

as_paramshard() {
  setpriv --reuid=paramshard --regid=paramshard --clear-groups \
    env PARAMSHARD_SOCKET_DIR="${sockets-/run/paramshard}" "$@"
}

server() {
  as_paramshard paramshardctl -o json version | sed -n 's/.*"pid": *"\?\([0-9]*\).*/\1/p'
}

commit() {
  as_paramshard paramshardctl models | awk '$1 == "digits" {print $7}'
}

replaced() {
  local now
  now=$(server) && [[ -n $now && $now != "$1" ]]
}

train() {
  as_paramshard paramshard-digits --rank=0 --world-size=1 --steps="$1" --report=/tmp/report >/dev/null
}

cat >>/etc/paramshard/paramshardd.env <<'SETTINGS'
PARAMSHARD_DEVICE=cpu:0
PARAMSHARD_SAVE_DIR=/var/lib/paramshard
PARAMSHARD_RESTORE=latest
SETTINGS

echo "-- start"
expect "the start waits until the daemon serves" systemctl start paramshardd
expect "it serves then" as_paramshard paramshardctl version
expect "the status names the world" is StatusText 'node 0 of 1 on cpu:0; no models'
main=$(property MainPID)
expect "the keeper is the main process" test "$main" != "$(server)"
expect "a training runs" train 60
trained=$(commit)
expect "it has made commits" test "$trained" -ge 60
expect "the status names the model" await 15 is StatusText "*digits at commit $trained*"
systemctl status --no-pager paramshardd | sed -n 's/^ *\(Active\|Status\|Main PID\)/   \1/p'

echo "-- kill -9 of the server"
before=$(server)
kill -KILL "$before"
expect "another server serves" await 30 replaced "$before"
expect "the unit is active" is ActiveState active
expect "the keeper is the same" is MainPID "$main"
expect "no commit is lost" test "$(commit)" = "$trained"
expect "the training goes on" train 70
trained=$(commit)
expect "with new commits" test "$trained" -ge 70

echo "-- upgrade"
before=$(server)
rm /usr/bin/paramshardd  # so that the package brings another file
dpkg --install package.deb >/dev/null
expect "the daemon has not noticed" test "$(server)" = "$before"
expect "it is restarted" as_paramshard paramshardctl restart --binary /usr/bin/paramshardd
expect "another server serves" await 30 replaced "$before"
expect "it runs the new program" test "$(readlink "/proc/$(server)/exe")" = /usr/bin/paramshardd
expect "the unit is active" is ActiveState active
expect "the keeper is the same" is MainPID "$main"
expect "models are kept" test "$(commit)" = "$trained"

echo "-- stop"
expect "it ends" systemctl stop paramshardd
expect "in order" is Result success
expect "with a save" compgen -G "/var/lib/paramshard/digits/step-$(printf %012d "$trained")-*"
expect "no process is left" bash -c '! pgrep paramshardd'

echo "-- start again"
expect "it serves" systemctl start paramshardd
expect "the training goes on" train 80
expect "from the save" bash -c "journalctl --no-pager --unit=paramshardd | grep 'model restored.*step=$trained'"
systemctl stop paramshardd

echo "-- with the drop-ins for GPUs and for worlds of machines, alone and on a cpu device"
install -D --mode=644 --target-directory=/etc/systemd/system/paramshardd.service.d units/{gpu,world}.conf
echo PARAMSHARD_NODE=0 >/etc/paramshard/node.env
systemctl daemon-reload
expect "locked memory has no limit" is LimitMEMLOCK infinity
expect "devices are named" is DeviceAllow '*char-nvidia rw*'
expect "it starts" systemctl start paramshardd
expect "a training runs" train 90
systemctl stop paramshardd
rm -r /etc/systemd/system/paramshardd.service.d
systemctl daemon-reload

echo "-- a start that fails"
sed -i 's/^PARAMSHARD_DEVICE=.*/PARAMSHARD_DEVICE=tpu:0/' /etc/paramshard/paramshardd.env
expect "it is said" bash -c '! systemctl start paramshardd 2>/dev/null'
expect "with the daemon's exit code" is ExecMainStatus 2

echo "-- two daemons of a world"
for node in 0 1; do
  printf 'PARAMSHARD_%s\n' NODE=$node NODES=2 CLUSTER_ADDRESS=127.0.0.1:7777 DEVICE=cpu:$node \
    >/etc/paramshard/node$node.env
done
expect "they start together" systemctl start paramshardd@node0 paramshardd@node1
expect "the status names the node" is StatusText 'node 1 of 2*' paramshardd@node1
for rank in 0 1; do
  sockets=/run/paramshard-node$rank as_paramshard paramshard-digits --rank=$rank --world-size=2 --steps=20 \
    --report=/tmp/report-$rank >/dev/null &
  trainers[rank]=$!
done
expect "a training of two ranks ends" wait "${trainers[0]}"
expect "on both" wait "${trainers[1]}"
expect "they stop" systemctl stop 'paramshardd@*'

echo "-- a world of two machines, as far as networks go: the unit with its drop-in, and the template"
ip link add world type bridge
ip link set world up
install --directory --mode=750 --group=paramshard /etc/paramshard/tls
install --mode=644 /tls/ca.pem /tls/node[01].pem /etc/paramshard/tls
install --owner=paramshard --group=paramshard --mode=400 /tls/node[01].key /etc/paramshard/tls
install --directory --owner=paramshard --group=paramshard --mode=700 /srv/saves
# settings NODE: the machine's own settings.
settings() {
  printf 'PARAMSHARD_%s\n' NODE=$1 NODES=2 CLUSTER_ADDRESS=10.0.0.10:7777 DATA_ADDRESS=10.0.0.1$1 \
    TRUSTED_DATA_NETWORK=on TLS_CERT=/etc/paramshard/tls/node$1.pem TLS_KEY=/etc/paramshard/tls/node$1.key \
    TLS_CA=/etc/paramshard/tls/ca.pem SAVE_DIR=/srv/saves STATE_DIR=/var/lib/paramshard
}
# machine NODE UNIT: a network with an address of its own for the unit, and its drop-ins.
machine() {
  local drop_ins=/etc/systemd/system/$2.service.d
  ip netns add "machine$1"
  ip link add "world-$1" type veth peer name world netns "machine$1"
  ip link set "world-$1" master world up
  ip -netns "machine$1" link set lo up
  ip -netns "machine$1" address add "10.0.0.1$1/24" dev world
  ip -netns "machine$1" link set world up
  mkdir -p "$drop_ins"
  printf '%s\n' '[Service]' ReadWritePaths=/srv/saves >"$drop_ins/saves.conf"
  printf '%s\n' '[Service]' "NetworkNamespacePath=/run/netns/machine$1" >"$drop_ins/machine.conf"
}
printf 'PARAMSHARD_%s\n' DEVICE=cpu:0 SAVE_DIR=/srv/saves >/etc/paramshard/paramshardd.env
settings 0 >/etc/paramshard/node.env
machine 0 paramshardd
install --mode=644 units/world.conf /etc/systemd/system/paramshardd.service.d
{ echo PARAMSHARD_DEVICE=cpu:0 && settings 1; } >/etc/paramshard/node1.env
machine 1 paramshardd@node1
grep --invert-match EnvironmentFile= units/world.conf >/etc/systemd/system/paramshardd@node1.service.d/world.conf
systemctl daemon-reload
expect "they start together" systemctl start paramshardd paramshardd@node1
expect "node 0 is of two" is StatusText 'node 0 of 2*'
expect "so is node 1" is StatusText 'node 1 of 2*' paramshardd@node1
# train_world STEPS: a rank of each machine.
train_world() {
  local trainers=() rank folders=(/run/paramshard /run/paramshard-node1)
  for rank in 0 1; do
    sockets=${folders[rank]} as_paramshard paramshard-digits --rank=$rank --world-size=2 --model=world --steps="$1" \
      --report=/tmp/report-$rank >/dev/null &
    trainers[rank]=$!
  done
  wait "${trainers[0]}" && wait "${trainers[1]}"
}
expect "a training of two ranks ends" train_world 20
expect "no address is in the clear" bash -c '! grep "in the clear"' <<<"$(as_paramshard paramshardctl version)"
listens() {
  ip netns exec "machine$1" ss --no-header --listening --tcp --numeric | grep --invert-match ':7777 ' |
    grep --quiet " 10.0.0.1$1:"
}
expect "node 0 listens for bytes on its own address" listens 0
expect "node 1 does" listens 1
expect "node 0 keeps its decisions" compgen -G '/var/lib/paramshard/*world*'
expect "they stop" systemctl stop paramshardd paramshardd@node1
expect "with a save" compgen -G '/srv/saves/world/step-*'

echo "-- a daemon of that world whose network the unit does not allow"
mv /etc/systemd/system/paramshardd@node1.service.d/world.conf /tmp
systemctl daemon-reload
systemctl start --no-block paramshardd
echo PARAMSHARD_JOIN_TIMEOUT=5s >>/etc/paramshard/node1.env
expect "it does not start" bash -c '! systemctl start paramshardd@node1 2>/dev/null'
expect "it has not reached node 0" bash -c "journalctl --no-pager --unit=paramshardd@node1 |
  grep 'start failed.*timed out.*node 0 (10.0.0.10:7777)'"
mv /tmp/world.conf /etc/systemd/system/paramshardd@node1.service.d
systemctl daemon-reload
expect "with the network it does" systemctl start paramshardd@node1
systemctl stop paramshardd paramshardd@node1

echo "-- a daemon of that world with another node's certificate"
sed -i 's,tls/node1,tls/node0,' /etc/paramshard/node1.env
expect "it does not start" bash -c '! systemctl start paramshardd@node1 2>/dev/null'
expect "which certificate was expected is said" bash -c "journalctl --no-pager --unit=paramshardd@node1 |
  grep 'start failed.*node/'"

echo "-- a daemon of one user"
useradd --create-home user
as_user() {
  local id
  id=$(id --user user)
  setpriv --reuid=user --regid=user --clear-groups env HOME="$(getent passwd user | cut --delimiter=: --fields=6)" XDG_RUNTIME_DIR="/run/user/$id" \
    DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$id/bus" "$@"
}
expect "a user may have services without being there" loginctl enable-linger user
expect "the user's manager runs" await 20 as_user systemctl --user is-system-running --wait
expect "the daemon starts" as_user systemctl --user start paramshardd
expect "where clients look for it" as_user paramshardctl version
expect "a training runs" as_user sh -c 'paramshard-digits --rank=0 --world-size=1 --steps=20 >/dev/null'
expect "it stops" as_user systemctl --user stop paramshardd

echo "-- for people"
systemd-analyze security --no-pager --offline=no paramshardd 2>/dev/null | tail -n 1
echo "all checks passed"
