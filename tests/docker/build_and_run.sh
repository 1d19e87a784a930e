#!/usr/bin/env bash
# Build the Dockerfile and try the image: no registry and no Docker daemon, but root and a network; 10 to 40 minutes.
#
#   tests/docker/build_and_run.sh [SUITE MIRROR]      for example: jammy and a mirror of Ubuntu
#
# GPU=yes in the environment builds the image with NCCL, which is larger; no GPU is needed to build and try it.
# The base image is made by debootstrap: this machine's own Debian, or another SUITE from MIRROR. buildah builds and
# runs. Two containers in two network namespaces play two nodes. One line a check; exit code 1 if one failed. Leaves
# nothing behind. Needs the packages buildah, debootstrap, iproute2 and openssh-client, and 12 GB under TMPDIR (GPU: 30).
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case "${1:-}" in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ "$(id -u)" = 0 ] || { echo "docker test: needs root, for debootstrap and network namespaces" >&2; exit 2; }
for tool in buildah debootstrap ip ssh-keygen; do
    command -v $tool > /dev/null || { echo "docker test: found no $tool: apt-get install buildah debootstrap iproute2 openssh-client" >&2; exit 2; }
done

suite=${1:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
mirror=${2:-$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' | awk -v suite="$suite" '$1 == suite {print $2; exit}')}
scratch=$(mktemp -d --tmpdir bert-horovod-image.XXXXXX)
nodes=("image$$a" "image$$b")
networks=()
image=localhost/bert-horovod:test
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$scratch/storage" --runroot "$scratch/run" "$@"; }

clean_up() {
    local network
    trap - EXIT
    for network in "${networks[@]}"; do
        ip netns pids "$network" | xargs --no-run-if-empty kill -KILL
        ip netns delete "$network"
    done
    buildah rm --all > /dev/null 2>&1
    # Nothing of this machine may still be mounted where everything is deleted.
    awk -v below="$scratch/" 'index($5, below) == 1 {print $5}' /proc/self/mountinfo | sort -r | xargs --no-run-if-empty umount
    rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

failures=0
# check NAME COMMAND...: run it, say how it went and how long it took, and the end of its output if it failed.
check() {
    local name=$1 start=$SECONDS
    shift
    if "$@" > "$scratch/output" 2>&1; then
        printf 'ok     %4d s  %s\n' $((SECONDS - start)) "$name"
    else
        failures=$((failures + 1))
        printf 'FAILED %4d s  %s\n' $((SECONDS - start)) "$name"
        tail -n 25 "$scratch/output" | sed 's/^/    /'
    fi
}
must() { check "$@"; [ $failures = 0 ] || exit 1; }

# A base as a registry would give it, beside it what this machine needs to reach its package indexes.
make_base() {
    local tree=$scratch/tree container components=main
    [[ $mirror != *ubuntu* ]] || components=main,universe
    debootstrap --variant=minbase --components=$components "$suite" "$tree" "$mirror" &&
        cp /etc/ssl/certs/ca-certificates.crt "$tree/etc/ca-of-the-host.crt" || return
    apt-config dump Acquire | grep -E '^Acquire::(https?::|Check-)' > "$tree/etc/apt/apt.conf.d/90-of-the-host"
    printf '[global]\ncert = /etc/ca-of-the-host.crt\n' > "$tree/etc/pip.conf"
    python3 -m pip config list | sed -n "s/^global\.index-url='\(http.*\)'/index-url = \1/p" >> "$tree/etc/pip.conf"
    container=$(buildah from scratch) && buildah add --quiet "$container" "$tree" / &&
        buildah commit --quiet "$container" localhost/base:test && buildah rm "$container" && rm -rf "$tree"
}

# The project, and beside it what must never get into an image.
make_context() {
    mkdir "$scratch/context" &&
        tar -C "$root" --exclude=./.venv --exclude=./.git --exclude=__pycache__ -cf - . | tar -C "$scratch/context" -xf - &&
        mkdir "$scratch/context/keys" "$scratch/context/.venv" && touch "$scratch/context/.venv/planted-environment" &&
        ssh-keygen -q -t ed25519 -N '' -C planted-key -f "$scratch/context/keys/id_ed25519" &&
        cp "$scratch/context/keys/id_ed25519" "$scratch/context/id_rsa"
}
build() { buildah bud --layers --format docker --build-arg BASE_IMAGE=localhost/base:test ${GPU:+--build-arg GPU=$GPU} --tag $image "$scratch/context"; }
build_again() {
    echo "# changed" >> "$scratch/context/bert_horovod/__init__.py"
    build > "$scratch/again" 2>&1 && cat "$scratch/again" && ! grep -q "building Horovod" "$scratch/again"
}

configured() { buildah inspect --type image --format "{{$1}}" $image; }
not_root() { [ "$(configured .OCIv1.Config.User)" = 1000 ] && [ "$(inside bash -c 'echo $(id -un) $(id -u) $HOME; pwd')" = "bert 1000 /home/bert
/opt/bert_horovod" ]; }
# In no layer: a file that a later layer deletes is still in the image.
no_keys() {
    local found
    found=$(find "$scratch"/storage/*/*/diff -type f \( -name 'ssh_host_*' -o -name 'id_*sa*' -o -name 'id_ed*' \
        -o -name authorized_keys -o -name 'planted*' \) -not -path '*/site-packages/*')
    [ -z "$found" ] || { echo "$found"; return 1; }
    ! grep -rlIE --exclude-dir=python3 'planted-key|BEGIN OPENSSH PRIVATE KEY' "$scratch"/storage/*/*/diff
}

# inside COMMAND...: what `docker run IMAGE COMMAND...` does, in a new container; options for buildah in $options.
options=()
inside() {
    local container status
    container=$(buildah from --pull-never $image) || return
    read -ra entry <<< "$(configured .OCIv1.Config.Entrypoint | tr -d '[]')"
    buildah run "${options[@]}" "$container" -- "${entry[@]}" "$@"
    status=$?
    buildah rm "$container" > /dev/null
    return $status
}
# on NODE COMMAND...: the same with the node's network.
on() { ip netns exec "$1" "$BASH" -c "$(declare -f inside configured buildah); $(declare -p scratch image options); inside \"\$@\"" on "${@:2}"; }

# refused CODE MESSAGE COMMAND...: it ends with this exit code, and says this.
refused() {
    local output status
    output=$(inside "${@:3}" 2>&1)
    status=$?
    echo "$output"
    [ $status = "$1" ] && [[ $output = *"$2"* ]] || { echo "exit code $status, wanted $1 and: $2"; return 1; }
}
has_nccl() { inside horovodrun --check-build | tee "$scratch/built" && grep -F '[X] NCCL' "$scratch/built"; }
helps() { inside | grep "docker run .* IMAGE sshd"; }
quickstart() { inside run/quickstart.sh | tee "$scratch/quickstart" && grep -q '^held-out tokens' "$scratch/quickstart" && ! grep -q 'setup: building' "$scratch/quickstart"; }

connect_nodes() {
    local number network
    ip link add "${nodes[0]}" type veth peer name "${nodes[1]}" || return
    for number in 0 1; do
        network=${nodes[$number]}
        ip netns add "$network" && networks+=("$network") && ip link set "$network" netns "$network" name eth0 &&
            ip -n "$network" address add "10.219.77.$((number + 1))/24" dev eth0 &&
            ip -n "$network" link set eth0 up && ip -n "$network" link set lo up || return
    done
}
start_sshd() {
    local number
    for number in 0 1; do
        on "${nodes[$number]}" sshd > "$scratch/sshd$number" 2>&1 &
    done
    for _ in {1..60}; do
        [ "$(grep -l 'Server listening' "$scratch"/sshd[01] | wc -l)" = 2 ] && break
        sleep 1
    done
    head -n 50 "$scratch"/sshd[01]
    [ "$(grep -l 'Server listening' "$scratch"/sshd[01] | wc -l)" = 2 ]
}
host_keys() { for host in 1 2; do ip netns exec "${nodes[0]}" ssh-keyscan -p 2222 10.219.77.$host 2> /dev/null | cut -d ' ' -f 3; done; }
host_keys_differ() { host_keys; [ "$(host_keys | grep -c AAAA)" = 2 ] && [ "$(host_keys | sort -u | wc -l)" = 2 ]; }
logs_in() { [ "$(on "${nodes[0]}" ssh 10.219.77.2 'id -un; command -v bert-horovod')" = "bert
/opt/bert_horovod/.venv/bin/bert-horovod" ]; }
stranger() {
    local options=(--volume "$scratch/other:/keys:ro") output
    output=$(on "${nodes[0]}" ssh 10.219.77.2 true 2>&1)
    echo "$output"
    [[ $output = *"Permission denied"* ]]
}
ranks='import horovod.tensorflow as hvd; hvd.init(); import tensorflow as tf; print("sum", int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum)), "of", hvd.cross_size(), "nodes")'
reduces() { on "${nodes[0]}" "$@" python -c "$ranks" | tee "$scratch/ranks" && [ "$(grep -c 'sum 3 of 2 nodes' "$scratch/ranks")" = 2 ]; }

must "base image of $suite" make_base
must "build context with keys planted beside the code" make_context
must "build" build
echo "                $(buildah images --format '{{.Size}}' $image)"
check "a change of the code builds neither TensorFlow nor Horovod" build_again
check "runs as a normal user" not_root
[ "${GPU:-}" != yes ] || check "Horovod has NCCL" has_nccl
check "no key, and nothing else from beside the code, in any layer" no_keys
check "without a command: help" helps
check "unknown command" refused 127 "found no command 'pretrian'" pretrian
check "sshd without keys" refused 1 "found no mounted /keys" sshd
mkdir -p "$scratch/empty" "$scratch/foreign" "$scratch/keys" "$scratch/other"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/foreign/id_ed25519"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/keys/id_ed25519"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/other/id_ed25519"
chown -R 1000 "$scratch/keys" "$scratch/other"
options=(--volume "$scratch/empty:/keys:ro")
check "sshd with an empty directory of keys" refused 1 "found no key in /keys" sshd
options=(--volume "$scratch/foreign:/keys:ro")
check "sshd with somebody else's private key" refused 1 "/keys/id_ed25519 belongs to user 0 (mode 600), and user 1000" sshd
options=(--volume "$scratch/keys:/keys:ro")
check "two nodes connected" connect_nodes
check "sshd starts as that user on two nodes" start_sshd
check "host keys are made at start: they differ" host_keys_differ
check "login with the mounted key" logs_in
check "no login with another key" stranger
check "horovodrun over Gloo, 2 nodes" reduces horovodrun --gloo -p 2222 -np 2 -H 10.219.77.1:1,10.219.77.2:1
check "horovodrun over MPI, 2 nodes" reduces horovodrun --mpi -p 2222 -np 2 -H 10.219.77.1:1,10.219.77.2:1
check "mpirun, 2 nodes" reduces mpirun -np 2 -H 10.219.77.1:1,10.219.77.2:1 --bind-to none -x PATH
options=()
check "quickstart" quickstart
sed -n '/^training loss/,$s/^/                /p' "$scratch/quickstart"
[ $failures = 0 ] || { echo "docker test: $failures failed" >&2; exit 1; }
echo "docker test: all passed, $((SECONDS / 60)) minutes"
