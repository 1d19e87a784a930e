#!/usr/bin/env bash
# Write the versions that run/setup.sh installs, one file for each Python: the newest ones that pyproject.toml allows.
#
#   run/constraints/renew.sh        needs .venv (run/setup.sh) and the network; then run the tests on every Python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for python in 3.10 3.11 3.12 3.13; do
    .venv/bin/uv pip compile --quiet --upgrade --all-extras --overrides run/constraints/without.txt \
        --python-version "$python" --python-platform x86_64-manylinux_2_28 --no-annotate \
        --custom-compile-command run/constraints/renew.sh --output-file "run/constraints/python$python.txt" pyproject.toml
done
