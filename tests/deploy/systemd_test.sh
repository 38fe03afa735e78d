#!/usr/bin/env bash
# The units under a systemd that is process 1 of its own namespaces.
. tests/deploy/library.sh
needs_root
needs mmdebstrap ip

readonly root=$work/root
package=$(packages)
step "a root with systemd"
root_with "$root" systemd systemd-sysv dbus dbus-user-session libpam-systemd iproute2 procps \
  $(dependencies_of "$package")
install_into "$root" "$package" >/dev/null
checks_into "$root" tests/deploy/systemd_checks.sh
cp "$package" "$root/package.deb"
cp -r deploy/systemd "$root/units"
certificates "$root/tls"

# Its processes are in a group of their own, which is the root of the groups that it sees.
readonly groups=$work/groups
mkdir "$groups"
mount -t cgroup2 groups "$groups" || skip "this kernel has no cgroup2"
readonly group=$groups/paramshard-deploy-$$
mkdir "$group" || { umount "$groups" && skip "groups of processes cannot be made here"; }
no_groups() {
  find "$group" -depth -type d -exec rmdir {} + && [[ ! -e $group ]]
}
leave() {
  await 10 no_groups || true  # its processes end a moment after they are killed
  umount "$groups" || true
  rm -rf --one-file-system "$work"
}
trap leave EXIT

cat >"$root/etc/systemd/system/checks.service" <<'UNIT'
[Service]
Type=oneshot
WorkingDirectory=/
ExecStart=/bin/bash checks.sh
StandardOutput=file:/output
StandardError=inherit
ExecStopPost=/bin/touch done
UNIT
cat >"$root/etc/systemd/system/checks.target" <<'UNIT'
[Unit]
Requires=checks.service dbus.socket
UNIT
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"

boot() {
  echo $$ >"$0/cgroup.procs"
  exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash -c 'set -e
    with_kernel "$0"
    mount -t sysfs sys "$0/sys"
    mount -t cgroup2 groups "$0/sys/fs/cgroup"
    ip link set lo up
    hostname deploy
    mkdir -p "$0/mnt/old"
    cd "$0"
    pivot_root . mnt/old
    umount --lazy /mnt/old
    exec env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin container=other \
      /lib/systemd/systemd --system --unit=checks.target --log-target=null --show-status=no' "$1"
}
export -f boot

step "boot"
: >"$root/output"
bash -c 'boot "$@"' "$group" "$root" </dev/null >"$work/console" 2>&1 &
readonly system=$!
disown
await 300 test -e "$root/done" || true
# All in the namespace end with its process 1.
kill -KILL "$system" 2>/dev/null || true
cat "$root/output"
expect "all of it was run" grep --quiet '^all checks passed$' "$root/output"
