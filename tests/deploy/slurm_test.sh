#!/usr/bin/env bash
# Jobs of a Slurm of two nodes, which are two slurmd, each with a network and a host name of its own.
. tests/deploy/library.sh
needs_root
needs mmdebstrap ip

readonly root=$work/root
package=$(packages)
step "a root with Slurm"
root_with "$root" slurm-wlm munge procps iproute2 systemd-standalone-sysusers $(dependencies_of "$package" |
  grep --invert-match systemd)
install_into "$root" "$package" >/dev/null
install --mode=755 deploy/slurm/{prolog.sh,epilog.sh,paramshard.sbatch} "$root/etc/slurm/"
checks_into "$root" tests/deploy/slurm_checks.sh
certificates "$root/tls"
printf '%s\n' '127.0.0.1 localhost' '10.9.9.1 deploy' '10.9.9.10 node0' '10.9.9.11 node1' >"$root/etc/hosts"
cat >"$root/etc/slurm/slurm.conf" <<'CONF'
ClusterName=deploy
SlurmctldHost=deploy
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=10
Prolog=/etc/slurm/prolog.sh
Epilog=/etc/slurm/epilog.sh
PrologFlags=Alloc
NodeName=node0 CPUs=4
NodeName=node1 CPUs=4
PartitionName=all Nodes=node0,node1 Default=YES
CONF

step "jobs"
expect "all of them" unshare --mount --pid --fork --kill-child --uts --ipc --net bash -c '
  with_kernel "$0"
  mount -t sysfs sys "$0/sys"
  mount --rbind /sys/fs/cgroup "$0/sys/fs/cgroup"
  ip link set lo up
  # The network of Slurm, and a network for the data of daemons.
  ip link add nodes type bridge
  ip addr add 10.9.9.1/24 dev nodes
  ip link set nodes up
  ip link add fabric type bridge
  ip link set fabric up
  hostname deploy
  exec chroot "$0" /usr/bin/env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin bash checks.sh' "$root"
