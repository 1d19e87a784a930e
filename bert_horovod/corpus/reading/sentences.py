"""Where sentences end: one compiled pattern finds candidates, and only full stops are looked at more closely."""

import re
from pathlib import Path

from bert_horovod.recipe.fields import read_toml

CLOSING = "\"'”’»›)\\]}」』）》〉】〕"
_INNER_STOPS = re.compile(r"(?:\w\.)+\w")
_ROMAN_OR_NUMBER = re.compile(r"[IVXLC]+|\d{1,3}")
_WORDS = read_toml(Path(__file__).with_name("sentences.toml"), "the words of")
_TITLES = frozenset(_WORDS["titles"].split())
_BEFORE_NUMBERS = frozenset(_WORDS["before_numbers"].split())
_ABBREVIATIONS = _TITLES | _BEFORE_NUMBERS
_END_ALL_THE_SAME = frozenset(("a.m", "p.m", "A.M", "P.M", "B.C", "A.D"))


def _title_ends(letters: int) -> str:
    """The last letters of the titles that end with so many lowercase ones, as a pattern."""
    return "|".join(
        sorted({title[-letters:] for title in _TITLES if re.fullmatch(f"[a-z]{{{letters}}}", title[-letters:])})
    )


# A candidate: a paragraph's end; a CJK terminator, which needs no space; or another terminator with its closing quotes
# before a space and no lowercase letter. One set of characters comes first, because only then is the search fast. Most
# candidates surely end a sentence, and have a group: a paragraph's end, before a capital with no title.
_CANDIDATE = re.compile(
    rf"[\n.!?…؟۔।॥։。！？｡](?:(?:(?<=\n)|(?:(?<=[a-z]{{3}}\.)(?<!(?:{_title_ends(3)})\.)|"
    rf"(?<= [a-z]{{2}}\.)(?<! (?:{_title_ends(2)})\.)|(?<=[!?])|(?<=\.)(?=[{CLOSING}]))"
    rf"[{CLOSING}]* (?=[\"'“‘«(\[]*[A-Z]))()|(?<=[.!?…؟۔।॥։])[{CLOSING}]* "
    rf"(?![\"'“‘«(\[]*[a-z]|[.!?…])|(?<=[。！？｡])[{CLOSING}]*(?![。！？｡]) ?)"
)


def split_sentences(text: str) -> list[str]:
    r"""Cut text into sentences; none is empty.

    The text must have single spaces between words and "\n" between paragraphs; "\n" always ends a sentence. A
    terminator (. ! ? …, also Arabic, Indic and Armenian ones) ends a sentence if a space follows, or closing quotes and
    brackets and then a space, and the next letter is not lowercase; 。！？ need no space. A full stop after a title, an
    initial or an enumerating number does not end a sentence.

    >>> split_sentences('Dr. Hill left at 5 p.m. on Monday. "Why?" asked J. Smith.')
    ['Dr. Hill left at 5 p.m. on Monday.', '"Why?" asked J. Smith.']
    """
    sentences = []
    begin = 0
    for match in _CANDIDATE.finditer(text):
        end = match.end()
        if not match.lastindex:
            start = match.start()
            terminator, following = text[start], text[end : end + 1]
            if terminator == "." and not _full_stop_ends(text, begin, start, end):
                continue
            if following > "\x7f" and terminator in ".!?…" and following.islower():
                continue
        sentence = text[begin:end].strip()
        if sentence:
            sentences.append(sentence)
        begin = end
    sentence = text[begin:].strip()
    if sentence:
        sentences.append(sentence)
    return sentences


def _full_stop_ends(text: str, begin: int, stop: int, end: int) -> bool:
    if stop + 2 != end:  # closing quotes are between the stop and the space
        return True
    word_begin = max(begin, text.rfind(" ", begin, stop) + 1)
    word = text[word_begin:stop]
    if len(word) > 1 and word.islower() and word.isalpha() and word not in _ABBREVIATIONS:  # most words
        return True
    word = word.lstrip("\"'“‘«([—–-_")
    if len(word) == 1:
        return word == "I" or not (
            word.isupper()
            or (text[end : end + 1].isdigit() and word in _BEFORE_NUMBERS)
            or (word_begin == begin and word.isalnum())
        )
    if len(word) > 8:
        return True
    if word in _TITLES or (word in _BEFORE_NUMBERS and text[end : end + 1].isdigit()):
        return False
    # "12. The law" and "IV. The end" are one sentence each
    if word_begin == begin and _ROMAN_OR_NUMBER.fullmatch(word):
        return False
    return "." not in word or word in _END_ALL_THE_SAME or not _INNER_STOPS.fullmatch(word)
