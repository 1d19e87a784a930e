#!/bin/sh
# Prints a hostfile of the machines that answer now: launch --discover './fleet.sh machines'
#
# `machines` has a line `NAME slots=N` for each machine that may run. A cloud's own list can take its place; on AWS,
# for machines of 8 GPUs with the tag fleet=bert:
#   aws ec2 describe-instances --output text --query 'Reservations[].Instances[].PrivateIpAddress' \
#       --filters Name=tag:fleet,Values=bert Name=instance-state-name,Values=running | tr '\t' '\n' | sed 's/$/ slots=8/'

[ -r "$1" ] || {
    echo "fleet.sh: cannot read '$1'; expected a file with lines as: node1 slots=8" >&2
    exit 2
}
{
    while read -r name slots; do # all are asked at once
        case "$name" in
        '' | '#'*) ;;
        *) (ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$name" true > /dev/null 2>&1 && echo "$name $slots") & ;;
        esac
    done < "$1"
    wait
} | sort
