"""Make a small set of labelled texts of corpus.jsonl: is a text of the language reference, or of a module?

python label_documents.py corpus.jsonl      writes train.csv and dev.csv, with the columns text and label, and new.csv
"""

import csv
import json
import sys
from pathlib import Path

rows = []
for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    document = json.loads(line)
    label = "module" if document["name"].endswith(".py") else "language"
    rows += [{"text": part, "label": label} for part in document["text"].split("\n\n")[:8] if len(part) > 40]
parts = {"train.csv": rows, "dev.csv": rows[::5], "new.csv": [{"text": row["text"]} for row in rows[:3]]}
parts["train.csv"] = [row for i, row in enumerate(rows) if i % 5]
for name, chosen in parts.items():
    with open(name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(chosen[0]))
        writer.writeheader()
        writer.writerows(chosen)
    print(f"{name}: {len(chosen):,} texts")
