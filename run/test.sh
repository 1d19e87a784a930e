#!/usr/bin/env bash
# Run the tests, those of several processes included.
#
#   run/test.sh [pytest arguments]      for example: run/test.sh -x tests/corpus; 13 to 30 minutes on 2 cores
#   run/test.sh --minutes N [...]       begins no test later than N minutes from now and says which part was not run
#   run/test.sh --slow [...]            what takes longer: kills, clusters in a box, much fuzzing, benchmarks
#
# Sets up what is missing first. Needs no network, no GPU and no cluster once it is set up. Files of tests run side by
# side, one more than there are cores, because some wait; -n 0 runs them one after another.
set -euo pipefail

minutes=
if [ "${1:-}" = --minutes ]; then
    minutes=$2
    shift 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/run/setup.sh" --test
export PATH="$root/.venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=3
cd "$root"
marks="not slow and not nccl"
if [ "${1:-}" = --slow ]; then
    shift
    marks="slow or fuzz"
    export FUZZ_EXAMPLES="${FUZZ_EXAMPLES:-150}"
fi
if [ -n "$minutes" ]; then
    set -- --begin-until "$(($(date +%s) + minutes * 60 - SECONDS))" "$@"
fi
# Each start of TensorFlow would compile its modules anew.
unset PYTHONDONTWRITEBYTECODE
echo "test: $marks: pytest $*"
exec python -m pytest -m "$marks" -n "$(($(nproc) < 4 ? $(nproc) + 1 : 4))" --dist loadfile --no-loadscope-reorder --durations=10 "$@"
