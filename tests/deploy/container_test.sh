#!/usr/bin/env bash
# The image, built without a registry; a daemon and a trainer in containers of their own, with a folder of sockets.
. tests/deploy/library.sh
needs_root
needs mmdebstrap buildah dpkg-deb

# Again in namespaces of its own, where containers are mounted, and end with it.
if [[ ${1-} != inside ]]; then
  rm -rf "$work"
  exec unshare --mount --pid --fork --kill-child --mount-proc --ipc bash "$0" inside
fi

readonly image=localhost/paramshard:test
readonly storage=(--root "$work/store" --runroot "$work/run" --storage-driver vfs)
readonly sockets=$work/sockets
readonly saves=$work/saves
builder() {
  buildah "${storage[@]}" "$@"
}

package=$(packages)
step "build"
deploy/container/build "$package" "$image" "${storage[@]}" >"$work/build.log" 2>&1 ||
  { tail -n 20 "$work/build.log" && exit 1; }
builder images --format '   {{.Name}} {{.Size}}'
inspect() {
  builder inspect --type image --format "{{$1}}" "$image"
}
expect "its user has a number of its own" test "$(inspect .Docker.Config.User)" = 65532:65532
expect "it can be carried" builder push --quiet "$image" "docker-archive:$work/image.tar"
expect "health is asked for" grep --quiet paramshardctl <(inspect .Docker.Config.Healthcheck.Test)

# A container with the settings of every container of a pod: the user, the sockets, the processes.
container() {
  builder from --name "$1" "$image" >/dev/null
}
in_container() {
  local name=$1
  shift
  builder run --isolation chroot --volume "$sockets:/sockets" --volume "$saves:/saves" "$name" -- "$@"
}
install --directory --owner=65532 --group=65532 --mode=700 "$sockets" "$saves"

step "run"
container daemon
container trainer
in_container daemon paramshardd --device=cpu:0,cpu:1 --save-dir=/saves >"$work/daemon.log" 2>&1 &
daemon=$!
healthy() {
  in_container daemon paramshardctl --timeout=5s version
}
expect "the daemon becomes healthy" await 60 healthy
train() {
  in_container trainer paramshard-digits "--rank=$1" --world-size=2 --steps=30
}
train 0 >"$work/trainer.log" 2>&1 &
trainer=$!
expect "rank 1 trains in another container" train 1
expect "rank 0 does" wait "$trainer"
in_container daemon paramshardctl models

step "stop"
keeper() {
  pgrep --oldest --exact paramshardd
}
kill -TERM "$(keeper)"
expect "the daemon ends in order" wait "$daemon"
expect "with a save" compgen -G "$saves/digits/step-*"
expect "as the image's user" test "$(stat --format=%u "$saves/digits")" = 65532
