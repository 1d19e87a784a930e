#!/usr/bin/env bash
# From nothing to a small BERT in a few minutes: set-up, corpus, token store, pre-training on 2 ranks, summary, report page.
#
#   run/quickstart.sh [OUTPUT_DIR]     default: quickstart_output at the project's root
#
# Needs no GPU, no data and, once it is set up, no network: the corpus is the documentation that Python carries.
# Running it again reuses what is finished, and resumes what was interrupted.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "quickstart: unknown argument '$1'; the only one is a directory" >&2; exit 2 ;;
esac
output=${1:-$root/quickstart_output}
mkdir -p -- "$output"
output=$(cd -- "$output" && pwd)

# horovodrun and TensorFlow put things around what the program says; which command comes next is this script's affair.
# Ctrl-C is for the program, not for the filter: what the program says last is still to be seen.
run() {
    "$@" 2>&1 | (
        trap '' INT
        exec sed -u -E -e '/absl::InitializeLog|^I0000 .*(cudart_stub|port)\.cc|^next: /d' -e 's/^\[[0-9,]+\]<std(out|err)>://'
    )
}
say() { printf '\n[%s/6] %s\n' "$1" "$2"; }
trap 'printf "\nquickstart: interrupted; the same command goes on from here\n" >&2; exit 130' INT
trap 'printf "quickstart: stopped; the same command goes on from here\n" >&2' ERR

say 1 "Set-up (the first time: 3 to 6 minutes)"
"$root/run/setup.sh"
export PATH="$root/.venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=3

say 2 "Corpus: the documentation of Python and its standard library"
if [ -s "$output/corpus.jsonl" ]; then
    echo "$output/corpus.jsonl is there already"
else
    run python "$root/run/quickstart.py" corpus "$output/corpus.jsonl"
fi

say 3 "Vocabulary: 4,096 WordPieces"
if [ -s "$output/vocab.txt" ]; then
    echo "$output/vocab.txt is there already"
else
    run bert-horovod vocab --input "$output/corpus.jsonl" --size 4096 --output "$output/vocab.txt"
fi

say 4 "Token store, a tenth of it held out"
run bert-horovod prepare --input "$output/corpus.jsonl" --vocab "$output/vocab.txt" --output_dir "$output/store" --held_out 0.1

say 5 "Pre-training on 2 ranks, 2 to 4 minutes"
run horovodrun -np 2 python "$root/run/run_pretraining.py" --recipe "$root/run/recipes/quickstart.toml" \
    --data_dir "$output/store" --output_dir "$output/run"

say 6 "Summary"
run python "$root/run/quickstart.py" summary "$output"
run bert-horovod report "$output/run" --output "$output/report.html"
