"""Make a small set of tagged sentences of corpus.jsonl: exceptions, constants and versions of Python.

python tag_documents.py corpus.jsonl      writes train.conll and dev.conll, a word and its tag a line, and new.txt
"""

import builtins
import json
import re
import sys
from pathlib import Path

CONSTANTS = {"None", "True", "False", "NotImplemented", "Ellipsis"}
ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
VERSION = re.compile(r"\bPython \d+(?:\.\d+)*")


def tagged(text: str) -> list[tuple[str, str]]:
    """The text's words, split at blanks and punctuation, with their tags."""
    versions = [match.span() for match in VERSION.finditer(text)]
    words = []
    for match in re.finditer(r"[^\W_]+|[^\w\s]|_", text):
        word, begin = match[0], match.start()
        tag = "B-CONSTANT" if word in CONSTANTS else "B-ERROR" if word in ERRORS else "O"
        for first, last in versions:
            if first <= begin < last:
                tag = "B-VERSION" if begin == first else "I-VERSION"
        words.append((word, tag))
    return words


sentences = []
for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    for sentence in re.split(r"(?<=[.!?])\s+|\n\n", json.loads(line)["text"]):
        words = tagged(sentence)
        if len(words) < 60 and any(tag != "O" for _, tag in words):
            sentences.append((sentence, words))
for name, chosen in (
    ("train.conll", [words for i, (_, words) in enumerate(sentences) if i % 5]),
    ("dev.conll", [words for _, words in sentences[::5]]),
):
    text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in words) for words in chosen)
    Path(name).write_text(text, encoding="utf-8")
    print(f"{name}: {len(chosen):,} sentences")
Path("new.txt").write_text("".join(" ".join(text.split()) + "\n" for text, _ in sentences[:20]), encoding="utf-8")
