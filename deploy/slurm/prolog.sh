#!/bin/bash
# Prolog of slurmd: a folder for the job's sockets on this node, which is the user's.
set -eu
folder=/run/paramshard-jobs/paramshard-$SLURM_JOB_ID-$SLURMD_NODENAME
mkdir -p -m 755 "${folder%/*}"
# Remains of an earlier job of this number belong to nobody.
rm -rf --one-file-system "$folder"
install -d -m 700 -o "$SLURM_JOB_UID" "$folder"
