# The image: TensorFlow, Horovod with NCCL, Gloo and MPI, and the program. docs/docker.md shows it on several nodes.
#
#   docker build -t bert-horovod .                                                              for NVIDIA GPUs
#   docker build -t bert-horovod --build-arg BASE_IMAGE=debian:bookworm .                       without; any Debian or Ubuntu with Python 3.10 to 3.13
#   docker build -t bert-horovod --build-arg BASE_IMAGE=debian:bookworm --build-arg GPU=yes .   for GPUs on such a base: T4 and later, driver 580
#   --build-arg USER_ID=$(id -u)      the user inside has your number, so that it may read your keys and write your data
#
#   docker run bert-horovod                                          prints how to use it
#   docker run bert-horovod bert-horovod doctor                      runs a command
#   docker run -v /home/me/keys:/keys:ro bert-horovod sshd           waits for horovodrun or mpirun on another node
#
# Nothing in it runs as root. Keys and data are mounted; host keys are made when sshd starts.

# TensorFlow brings the CUDA 12 libraries, cuDNN and NCCL as wheels; this base has the compiler that Horovod needs.
ARG BASE_IMAGE=nvidia/cuda:12.5.1-devel-ubuntu22.04
FROM $BASE_IMAGE

# The package openssh-server makes host keys when it is installed: they would be the same in all containers.
# Gloo crashes where a host's own name does not resolve: libnss-myhostname resolves it where /etc/hosts and DNS do not.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential ibverbs-providers libnss-myhostname libopenmpi-dev openmpi-bin openssh-client openssh-server \
        python3 python3-dev python3-venv tini \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# Only what decides on versions, so that this layer outlives changes of the program. No GPU is visible while an image is
# built: whether the base has a CUDA compiler decides, or GPU=yes (the compiler of NVIDIA's wheels where it has none) or no.
ARG GPU=nvcc
ENV GPU=$GPU
WORKDIR /opt/bert_horovod
COPY setup.py pyproject.toml LICENSE ./
COPY run/setup.sh run/
COPY run/constraints run/constraints
COPY run/horovod_headers run/horovod_headers
COPY bert_horovod/__init__.py bert_horovod/
RUN touch README.md \
    && XDG_CACHE_HOME=/tmp/cache run/setup.sh && rm -rf /tmp/cache
ENV PATH=/opt/bert_horovod/.venv/bin:$PATH

# Gloo takes the first address of the host's own name: not the IPv6 one that is known on its own link only.
RUN echo "precedence ::ffff:0:0/96 100" > /etc/gai.conf

# Some bases have a user with this number already (Ubuntu 24.04: ubuntu).
ARG USER_ID=1000
RUN if [ "$USER_ID" -lt 1000 ]; then echo "USER_ID=$USER_ID is no normal user's number (1000 or more)" >&2; exit 1; fi \
    && if getent passwd "$USER_ID"; then userdel "$(id -nu "$USER_ID")"; fi \
    && useradd --create-home --no-log-init --shell /bin/bash --uid "$USER_ID" bert \
    && chown bert: .
COPY --chown=bert . .

USER $USER_ID
EXPOSE 2222
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/bert_horovod/run/container.sh"]
