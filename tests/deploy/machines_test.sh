#!/usr/bin/env bash
# The commands of docs/operate/several_machines.md, taken from the page, and the page's claims about them.
. tests/deploy/library.sh
needs_root
needs ip openssl jq dpkg-deb

# Again in namespaces of its own, with which all that it starts ends.
if [[ ${1-} != inside ]]; then
  rm -rf "$work"
  exec unshare --mount --pid --fork --kill-child --mount-proc bash "$0" inside
fi
mount --make-rprivate /
mkdir -p /run/netns
mount -t tmpfs names /run/netns  # names such as m0 outside stay unchanged
networks() {
  ip netns add probe && ip -n probe link add switch type bridge && ip -n probe link add port type veth peer name end &&
    ip netns delete probe
}
networks 2>/dev/null || skip "bridges between namespaces of networks cannot be made here"

package=$(packages)
dpkg-deb --extract "$package" "$work/package"
PATH=$work/package/usr/bin:$cache/prometheus/usr/bin:$PATH
export TMPDIR=$work  # where the page makes its folder
prometheus=

# A command of the page that fails ends the test as well, and says nothing else.
leave() {
  local status=$?
  ((status == 0)) || {
    echo "FAILED in \"$at_section\""
    tail --lines=15 "$work"/tmp.*/*.log "$work/output"
  } 2>/dev/null || true
  rm -rf --one-file-system "$work"
  exit $status
}
block=0
at_section=
trap leave EXIT

# A file for each block of commands, by number, and one with the section where it stands.
mkdir "$work/blocks"
awk -v blocks="$work/blocks/" '
  /^## / { section = substr($0, 4) }
  /^```/ { commands = $0 == "```bash"; count += commands }
  /^```bash$/ { print section >(blocks count ".section") }
  /^```/ { next }
  commands { print >(blocks count) }' docs/operate/several_machines.md

# next_block SECTION: the page's next one, which stands there.
next_block() {
  local stands_in
  block=$((block + 1))
  stands_in=$(cat "$work/blocks/$block.section" 2>/dev/null || echo "none")
  if [[ $stands_in != "$1" ]]; then
    echo "FAILED: block $block of the page: want a block of \"$1\", got \"$stands_in\""
    exit 1
  fi
  [[ $at_section == "$1" ]] || step "$1"
  at_section=$1
}

# follow SECTION: runs the next block. Not behind `expect` or `if`, where bash goes on after a command that fails.
follow() {
  next_block "$1"
  . "$work/blocks/$block" >"$work/output" 2>&1
}

leave_out() {
  next_block "$1"
  echo "left out: no prometheus: ./dev deps deploy installs it"
}

# model NODE FILTER: jq's output for the model on that node, queried on the machine itself.
model() {
  paramshardctl --timeout=5s --socket-dir="sockets$1" --output=json models | jq --exit-status ".models[0] | $2"
}
commits() {
  model "$1" '.commitNumber | tonumber'
}
# trains NODE [NODE,NODE]: NODE trains with these nodes; without an argument with all.
trains() {
  model "$1" ".running and ((.activeNodes // []) == [${2-}])"
}
train() {
  local nodes=$1 node
  shift
  for node in "$@"; do trains "$node" "$nodes" || return; done
}
all_train() {
  train "" 0 1 2
}
beyond() {
  local node
  for node in "${@:2}"; do (($(commits "$node") > $1)) || return; done
}
# commits_go_on NODE...: at all of these.
commits_go_on() {
  local before
  before=$(commits "$1")
  await 60 beyond $((before + 20)) "$@"
}
all_serve() {
  local node
  for node in 0 1 2; do grep --quiet ' info serving' "daemon$node.log" || return; done
}

follow "Before"
follow "Machines"
follow "Certificates"
follow "Daemons"
expect "three daemons serve" await 60 all_serve
follow "Daemons"
expect "they answer over the network" test "$(grep --count '^node .* of 3$' "$work/output")" = 3

follow "Trainers"
expect "they train" await 60 all_train
expect "commits go on" commits_go_on 0 1 2
follow "Trainers"
expect "they are shown" test "$(grep --count '^digits .* yes ' "$work/output")" = 3

if command -v prometheus >/dev/null; then
  follow "Prometheus"
else
  leave_out "Prometheus"
fi
# asked QUERY: succeeds if Prometheus has a result.
asked() {
  [[ -n $(ip netns exec hub promtool query instant http://10.9.0.1:9090 "$1") ]]
}
[[ ! $prometheus ]] || expect "it finds three daemons" await 30 asked 'count(up == 1) == 3'

follow "A daemon is killed"
wait "${daemons[1]}" "${trainers[1]}" 2>/dev/null || true
expect "the others go on without it" await 60 train 0,2 0 2
expect "their commits do" commits_go_on 0 2
away() {
  local status=0
  ctl version >"$work/output" 2>/dev/null || status=$?
  ((status == 3)) && grep --quiet '^absent *node 1 (' "$work/output"
}
expect "node 0 says who is absent" away
[[ ! $prometheus ]] || expect "so does the alert, which waits its minute" await 30 \
  asked 'ALERTS{alertname="ParamshardNodeMissing", instance="10.9.0.10:9464"}'
follow "A daemon is killed"
expect "it takes part again" await 60 all_train
expect "with a state from a replica" await 30 grep --quiet 'state received from a replica' daemon1.log
expect "commits go on" commits_go_on 0 1 2

follow "A machine is cut off"
expect "the others go on without it" await 90 train 0,1 0 1
expect "their commits do" commits_go_on 0 1
stands_still() {
  model 2 '.running | not' >"$work/output"
}
expect "its own do not" await 30 stands_still
expect "its daemon lives" kill -0 "${daemons[2]}"
expect "so does its trainer" kill -0 "${trainers[2]}"
follow "A machine is cut off"
expect "it takes part again" await 90 all_train
expect "with a state from a replica" await 30 grep --quiet 'state received from a replica' daemon2.log
expect "commits go on" commits_go_on 0 1 2

# Queries for which there is no number in such a world, by the metric that they ask for.
readonly no_number=(
  paramshard_last_save_timestamp_seconds  # nothing is saved
  paramshard_save_seconds_bucket
  paramshard_rpc_failures_total  # no call need have failed
)
named_for_nothing() {
  local metric
  for metric in "${no_number[@]}"; do grep --quiet "^== .*$metric" "$work/output" || echo "$metric"; done
}
# Queries without a number that are not among them; the quantile of an empty set is NaN.
without_number() {
  awk '/^== / { if (query) print query; query = substr($0, 4); next } / => / && !/ => NaN / { query = "" }
    END { if (query) print query }' "$work/output" | grep --invert-match --fixed-strings "${no_number[@]/#/--regexp=}"
}
if [[ $prometheus ]]; then
  expect "Prometheus has looked since" await 30 asked \
    'count(timestamp(paramshard_commit_number) > '"$(date +%s)"') == 3'
  follow "The dashboard"
  queries=$(grep --count '"expr"' "$deploy/grafana/paramshard.json")
  expect "all $queries queries are answered" test "$(grep --count '^== ' "$work/output")" = "$queries"
  expect "with numbers where there are any" test -z "$(without_number)"
  expect "and the others are queries of it" test -z "$(named_for_nothing)"
else
  leave_out "The dashboard"
fi

follow "The end"
expect "three trainings have ended at the same commit" test \
  "$(commits 0) $(commits 1) $(commits 2)" = "$((commit + 201)) $((commit + 201)) $((commit + 201))"
follow "The end"
cat "$work/output"
readonly sameness="version .*, commit $((commit + 201)): .*, 0 mismatches, state "
expect "three states are whole" test "$(grep --count "$sameness" "$work/output")" = 3
expect "and the same" test "$(grep "$sameness" "$work/output" | sort --unique | wc --lines)" = 1
follow "The end"
expect "three daemons have stopped in order" test "$(cat daemon?.log | grep --count ' info stopped')" = 3
expect "nothing is left running" test -z "$(pgrep paramshard; pgrep prometheus)"
expect "nor a namespace" test -z "$(ip netns list)"
expect "the page has no other commands" test ! -e "$work/blocks/$((block + 1))"
