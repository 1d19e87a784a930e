"""Make labelled pairs for a reranker of triples.jsonl, as `bert-horovod mine` writes it.

python label_triples.py triples.jsonl       writes labelled.csv and labelled_dev.csv, a tenth of the queries, with the
                                            columns query, passage and label: 1 of the right passage, 0 of others
"""

import csv
import json
import sys
from pathlib import Path

rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
for name, chosen in {
    "labelled.csv": [row for i, row in enumerate(rows) if i % 10],
    "labelled_dev.csv": rows[::10],
}.items():
    with open(name, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "passage", "label"])
        for row in chosen:
            writer.writerow([row["query"], row["passage"], 1])
            writer.writerows([row["query"], passage, 0] for passage in row["negative"])
    print(f"{name}: {len(chosen):,} queries")
