#!/usr/bin/env bash
# Run all tests, those of several processes included.
#
#   run/test.sh [pytest arguments]      for example: run/test.sh -x tests/corpus
#
# Sets up what is missing first. Needs no network, no GPU and no cluster once it is set up.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/run/setup.sh" --test
export PATH="$root/.venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=3
cd "$root"
echo "test: pytest $*"
exec python -m pytest "$@"
