#!/bin/sh
# Ends with 0 once this machine is to be taken away: pretrain --stop_when './notice.sh aws'
#
# notice.sh aws|google|azure|alibaba     asks the cloud's metadata address, which only the cloud's machines reach
# notice.sh file /run/leaving            looks for a file, which you or a service of yours makes
#
# METADATA: another address to ask, as in METADATA=127.0.0.1:8000.

ask() { curl -sf -m 5 "$@"; }

case "$1" in
file) exec test -e "$2" ;;
aws | google | azure | alibaba) command -v curl > /dev/null || exit 127 ;;
*)
    echo "notice.sh: found '$1'; expected aws, google, azure, alibaba, or file and its path" >&2
    exit 127 # pretrain refuses to start with it
    ;;
esac

case "$1" in
aws)
    at=http://${METADATA:-169.254.169.254}/latest
    token=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$at/api/token") || exit 1
    ask -o /dev/null -H "X-aws-ec2-metadata-token: $token" "$at/meta-data/spot/instance-action"
    ;;
google)
    ask -H Metadata-Flavor:Google "http://${METADATA:-metadata.google.internal}/computeMetadata/v1/instance/preempted" |
        grep -q TRUE
    ;;
azure) # a scale set's list has events of other machines too
    at=http://${METADATA:-169.254.169.254}/metadata
    name=$(ask -H Metadata:true "$at/instance/compute/name?api-version=2020-09-01&format=text") || exit 1
    ask -H Metadata:true "$at/scheduledevents?api-version=2020-07-01" | tr '{' '\n' | grep Preempt | grep -qiF "\"$name\""
    ;;
alibaba) ask -o /dev/null "http://${METADATA:-100.100.100.200}/latest/meta-data/instance/spot/termination-time" ;;
esac
