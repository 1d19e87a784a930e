#!/usr/bin/env bash
# Run the tests.
#
#   run/test.sh [pytest arguments]   what starts no process, the golden losses, and of each room one test with real ranks,
#                                    programs or peers: about 4 minutes on 2 cores; for example run/test.sh -x tests/corpus
#   run/test.sh --full [...]         all that a change must pass: .ci/run calls it; about 27 minutes on 2 cores
#   run/test.sh --slow [...]         what takes longer: kills, clusters in a box, benchmarks; an hour
#   run/test.sh [--full] --minutes N [...]   begins no test later than N minutes from now and says which part was not run
#
# Sets up what is missing first. Needs no network, no GPU and no cluster once it is set up. Files of tests run side by
# side, one more than there are cores, because some wait; -n 0 runs them one after another.
set -euo pipefail

marks="not full and not slow and not nccl"
minutes=
while true; do
    case "${1:-}" in
    --full) marks="not slow and not nccl" ;;
    --slow) marks="slow" ;;
    --minutes)
        minutes=$2
        shift
        ;;
    *) break ;;
    esac
    shift
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/run/setup.sh" --test
export PATH="$root/.venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=3
cd "$root"
if [ -n "$minutes" ]; then
    set -- --begin-until "$(($(date +%s) + minutes * 60 - SECONDS))" "$@"
fi
# Each start of TensorFlow would compile its modules anew.
unset PYTHONDONTWRITEBYTECODE
echo "test: $marks: pytest $*"
began=$SECONDS
code=0
python -m pytest -m "$marks" -n "$(($(nproc) < 4 ? $(nproc) + 1 : 4))" --dist loadgroup \
    --no-loadscope-reorder --durations=10 "$@" || code=$?
echo "test: $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s"
exit $code
