#!/usr/bin/env bash
# How to use the image (docs/docker.md shows it on several nodes):
#
#   docker run [OPTIONS] IMAGE COMMAND [ARGUMENTS]    run a command: bert-horovod, horovodrun, mpirun, run/quickstart.sh, bash, ...
#   docker run [OPTIONS] IMAGE sshd                   wait for horovodrun or mpirun on another node
#
#   --gpus all --ipc=host --network=host     what training on several nodes needs
#   -v /home/me/keys:/keys:ro                the cluster's ssh key, the same on all nodes: id_ed25519 and id_ed25519.pub;
#                                            the public ones and authorized_keys may log in
#   -v /data:/data                           the token store and the output
#   -e SSH_PORT=2222                         where sshd listens and ssh connects, the same on all nodes
#
# SIGTERM (docker stop -t 300, the eviction of a pod): ranks that run under sshd save and end, then the container ends.
set -euo pipefail

keys=${KEYS:-/keys}
port=${SSH_PORT:-2222}
fail() { printf 'container: %s\n' "$@" >&2; exit 1; }

make_key=("  make one:                    mkdir -p keys && ssh-keygen -t ed25519 -N '' -f keys/id_ed25519"
    "  and mount it on every node:  docker run -v \$PWD/keys:/keys:ro ...")

# A key that this user may read; the message is for one who mounted it.
require_readable() {
    if [ ! -r "$1" ] || { [ -d "$1" ] && [ ! -x "$1" ]; }; then
        fail "$1 belongs to user $(stat -Lc '%u (mode %a)' "$1"), and user $(id -u), who runs here, may not read it" \
            "  build the image for the owner:  docker build --build-arg USER_ID=\$(id -u) ..." \
            "  or mount a copy:                sudo install -o $(id -u) -m 600 KEY /somewhere/keys/"
    fi
}

# Copy the mounted keys to where ssh finds them: it takes only keys of its own user that nobody else can read.
take_keys() (
    found=
    umask 077
    id -un > /dev/null 2>&1 || fail "user $(id -u) is not known in the image, and ssh needs a known one" \
        "  build the image for this user:  docker build --build-arg USER_ID=$(id -u) ..."
    [[ $port =~ ^[0-9]{4,5}$ ]] && ((port >= 1024 && port < 65536)) || fail "SSH_PORT=$port is no port from 1024 to 65535"
    require_readable "$keys"
    mkdir -p ~/.ssh
    : > ~/.ssh/authorized_keys
    cat > ~/.ssh/config << END
Host *
    Port $port
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
    ServerAliveInterval 15
    ServerAliveCountMax 4
END
    for file in "$keys"/*; do
        case ${file##*/} in
            authorized_keys | *.pub)
                require_readable "$file"
                ssh-keygen -l -f "$file" > /dev/null 2>&1 || fail "$file holds no public key"
                { cat -- "$file" && echo; } >> ~/.ssh/authorized_keys
                ;;
            id_*)
                require_readable "$file"
                install -m 600 -- "$file" ~/.ssh/
                ssh-keygen -y -P '' -f ~/.ssh/"${file##*/}" > /dev/null 2>&1 ||
                    fail "$file is no private key, or one with a passphrase, which no launcher can type" "${make_key[@]}"
                echo "    IdentityFile ~/.ssh/${file##*/}" >> ~/.ssh/config
                ;;
            *) continue ;;
        esac
        found=yes
    done
    [ -n "$found" ] || fail "found no key in $keys (id_*, *.pub, authorized_keys)" "${make_key[@]}"
)

# A login has the commands and libraries of the image. A launcher logs in once for each rank, all at the same time.
serve() {
    local home=~/.sshd
    [ -s ~/.ssh/authorized_keys ] || fail "found no public key in $keys (*.pub, authorized_keys): nobody could log in"
    mkdir -p "$home"
    rm -f "$home"/ssh_host_*
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$home/ssh_host_ed25519_key"
    cat > "$home/config" << END
Port $port
HostKey $home/ssh_host_ed25519_key
AuthorizedKeysFile $(echo ~)/.ssh/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 1000
ClientAliveInterval 15
ClientAliveCountMax 4
SetEnv "PATH=$PATH" "GPU=${GPU:-}" ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"}
END
    echo "container: sshd of user $(id -un) on port $port, open for"
    ssh-keygen -l -f ~/.ssh/authorized_keys
    /usr/sbin/sshd -D -e -f "$home/config" &
    trap 'leave $!' TERM
    wait $!
}

# SIGTERM, as at a pod's eviction: let nobody else log in, pass it on to the ranks, which save, and wait for their end.
leave() {
    kill "$1"
    for rank in $(ranks); do kill -TERM "$rank" 2> /dev/null || true; done
    while [ -n "$(ranks)" ]; do sleep 1; done
    exit 0
}

# The processes that a launcher started here as ranks, without those that they started.
ranks() {
    local found=" " rank
    for rank in /proc/[0-9]*/environ; do
        if grep -qszE '^(HOROVOD|OMPI_COMM_WORLD)_RANK=' "$rank"; then found+="${rank//[!0-9]/} "; fi
    done
    for rank in $found; do
        [[ $found == *" $(awk '/^PPid:/ { print $2 }' "/proc/$rank/status" 2> /dev/null) "* ]] || echo "$rank"
    done
}

case "${1:-}" in
    "" | help | -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    sshd)
        [ $# = 1 ] || fail "sshd takes no arguments, found '${*:2}'; the port is SSH_PORT=$port"
        [ -d "$keys" ] || fail "found no mounted $keys, and without a key nobody could log in" "${make_key[@]}"
        take_keys
        serve
        ;;
esac
if ! type -P -- "$1" > /dev/null; then
    printf 'container: %s\n' "found no command '$1' in the image; expected sshd or a program, for example" \
        "  bert-horovod COMMAND ...      (bert-horovod --help lists the commands)" \
        "  horovodrun ...  mpirun ...  run/quickstart.sh  bash" >&2
    exit 127
fi
if [ -d "$keys" ]; then take_keys; fi
exec "$@"
