"""Make pairs for a search of corpus.jsonl: the first sentence of a paragraph is to find the rest of it.

python pair_paragraphs.py corpus.jsonl      writes pairs.csv and pairs_dev.csv, with the columns query and passage,
                                            passages.csv, with the column passage, and queries.txt
"""

import csv
import json
import re
import sys
from pathlib import Path

pairs, passages = {}, []
for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    for paragraph in json.loads(line)["text"].split("\n\n"):
        text = " ".join(paragraph.split())
        query, *rest = re.split(r"(?<=[.!?]) +(?=[A-Z])", text, maxsplit=1)
        if rest and 20 <= len(query) <= 200 and len(rest[0]) >= 40 and query not in pairs:
            pairs[query] = rest[0]
            passages.append({"passage": text})
rows = [{"query": query, "passage": passage} for query, passage in pairs.items()]
parts = {
    "pairs.csv": [row for i, row in enumerate(rows) if i % 10],
    "pairs_dev.csv": rows[::10],
    "passages.csv": passages,
}
for name, chosen in parts.items():
    with open(name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(chosen[0]))
        writer.writeheader()
        writer.writerows(chosen)
    print(f"{name}: {len(chosen):,} texts")
Path("queries.txt").write_text("copy a file to a directory\nparse the date of a string\nwait until a thread ends\n")
