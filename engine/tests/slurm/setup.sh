#!/usr/bin/env bash
# Install and start a Slurm of one node, as root; exit status 3 where that is not possible.
set -euo pipefail
if sinfo > /dev/null 2>&1; then exit 0; fi
if ! command -v slurmctld > /dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "test-slurm: no Slurm here; installing one needs root and apt" >&2
    exit 3
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge > /dev/null
fi
host=$(hostname -s)
mkdir -p /etc/slurm /var/spool/slurmd /var/spool/slurmctld /run/munge
cat > /etc/slurm/slurm.conf << CONF
ClusterName=one
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
MpiDefault=none
ReturnToService=2
JobRequeue=1
NodeName=$host CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
chown munge /run/munge
pgrep -x munged > /dev/null || su -s /bin/sh munge -c munged
pgrep -x slurmctld > /dev/null || slurmctld
pgrep -x slurmd > /dev/null || slurmd
for _ in $(seq 30); do
  if sinfo --noheader --format=%t 2> /dev/null | grep -qE 'idle|mix|alloc'; then exit 0; fi
  sleep 1
done
echo "test-slurm: Slurm did not start; see /var/log/slurmctld.log" >&2
exit 3
