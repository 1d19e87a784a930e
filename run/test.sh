#!/usr/bin/env bash
# Run all tests, those of several processes included.
#
#   run/test.sh [pytest arguments]      for example: run/test.sh -x tests/corpus
#
# Sets up what is missing first. Needs no network, no GPU and no cluster once it is set up. Files of tests run side by
# side, one a core and at most 4; -n 0 runs them one after another.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/run/setup.sh" --test
export PATH="$root/.venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=3
cd "$root"
echo "test: pytest $*"
exec python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
