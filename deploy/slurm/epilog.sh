#!/bin/bash
# Epilog of slurmd: ends daemons that have outlived their job on this node, and removes the folder. Daemons of other
# jobs of the same user go on: a daemon is the job's whose sockets it serves. Without its keeper a server ends.
set -eu
folder=/run/paramshard-jobs/paramshard-$SLURM_JOB_ID-$SLURMD_NODENAME
for process in $(pgrep --exact --uid "$SLURM_JOB_UID" paramshardd || true); do
  if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep --quiet --line-regexp --fixed-strings \
    "PARAMSHARD_SOCKET_DIR=$folder/sockets"; then
    kill -KILL "$process" 2>/dev/null || true
  fi
done
rm -rf --one-file-system "$folder"
