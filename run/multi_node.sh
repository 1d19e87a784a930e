#!/usr/bin/env bash
# Pre-train on several hosts, joined by Gloo. Start it on one of them; it needs ssh without a password to the others, and
# the project, its .venv and the token store at the same path on all.
#
#   run/multi_node.sh HOSTFILE --recipe R --data_dir D --output_dir O [more flags of `bert-horovod pretrain`]
#
#   INTERFACES=eth1   the network that carries gradients, where hosts have several
#
# Ctrl-C, SIGTERM or SIGUSR1 saves and stops; the same command resumes. hostfiles/ has examples.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
export PATH="$root/.venv/bin:$PATH"
exec bert-horovod launch -hostfile "$1" ${INTERFACES:+--network_interfaces "$INTERFACES"} -- pretrain "${@:2}"
