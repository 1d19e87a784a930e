"""Where sentences end."""

import pytest

from bert_horovod.corpus.reading.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?", "Four…", "Five"],
        ['He said "no."', "She left.", "“Really?”", "It ended.)", "So it did."],
        ['"What?" said he.', '"Go!" cried she.'],
        ["Mr. Fox met Dr. Hare and Mrs. Mole at St. Ives.", "Then J. R. R. Smith came."],
        [
            "It was 3.14 in all.",
            "The sum of $1.50 is small.",
            "See No. 5 and Fig. 2 of vol. 3.",
            "He said no.",
            "Then he left.",
        ],
        ["He left at 5 p.m.", "The train was late, i.e. He missed it."],
        ["So did I.", "They came, e.g. Tom and others in the U.S. Army."],
        ["1. The first law.", "12. The last law.", "In 1890.", "The end."],
        ["IV. The chapter.", "It was Henry IV.", "The king died."],
        ["Wait... what?", "Well...", "Yes. etc. and so on."],
        ["He paused. . . .", "Then he left!", "No . . . no.", "Why ?", "So ."],
        ["Été.", "Était-ce ça? élan.", "Ça va."],
        ["Что?", "Да! нет.", "Конец."],
    ],
)
def test_cut_as_a_reader_would(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_cjk_stops_need_no_space_and_keep_their_closing_quotes():
    assert split_sentences("我来了。你呢？「好！」他说。完") == ["我来了。", "你呢？", "「好！」", "他说。", "完"]
    assert split_sentences("真的！！是。") == ["真的！！", "是。"]


def test_a_paragraph_end_always_ends_a_sentence():
    assert split_sentences("A heading\nthen text\n\nand Mr.\nFox") == ["A heading", "then text", "and Mr.", "Fox"]


def test_nothing_is_lost_and_nothing_is_empty():
    text = 'A. B. C? "D." ... (E.) !? F.\n\n . \nG'
    sentences = split_sentences(text)
    assert all(sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert split_sentences("") == split_sentences(" \n ") == []
