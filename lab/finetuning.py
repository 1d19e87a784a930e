#!/usr/bin/env python3
"""Fine-tuning beside transformers: how fast it is, and what it learns.

python lab/finetuning.py pace --data_dir GLUE/SST-2 --checkpoint C             examples a second (finetuning_pace.py)
python lab/finetuning.py gain --checkpoint C --data GLUE --work DIR            scores from C and from fresh parameters
python lab/finetuning.py gain --checkpoint C --data GLUE --work DIR --losses   the first losses (finetuning_gain.py)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from lab import finetuning_gain, finetuning_pace

QUESTIONS = {"pace": finetuning_pace.main, "gain": finetuning_gain.main}


def main() -> int:
    """Answer the question that the first word names."""
    if (question := "".join(sys.argv[1:2])) not in QUESTIONS:
        print(__doc__, file=sys.stdout if question in ("-h", "--help") else sys.stderr)
        return 0 if question in ("-h", "--help") else 2
    sys.argv[:2] = [f"{sys.argv[0]} {question}"]
    return QUESTIONS[question]()


if __name__ == "__main__":
    sys.exit(main())
