#!/usr/bin/env python3
"""Pre-train BERT: `bert-horovod pretrain` under a name that launchers can start.

horovodrun -np 2 python run/run_pretraining.py --recipe run/recipes/bert-mini.toml --data_dir D --output_dir O
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "pretrain")
    main()
