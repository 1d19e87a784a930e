"""Words that many messages need."""

import pytest

from bert_horovod.wording import counted, did_you_mean, duration


@pytest.mark.parametrize(("number", "words"), [(0, "0 shards"), (1, "1 shard"), (2000, "2,000 shards")])
def test_things_are_counted_in_the_singular_and_the_plural(number, words):
    assert counted(number, "shard") == words


@pytest.mark.parametrize(
    ("word", "meant"),
    [("microbatch", "micro_batch"), ("Micro-Batch", "micro_batch"), ("stesp", "steps"), ("zebra", None), ("", None)],
)
def test_a_near_word_is_asked_for(word, meant):
    assert did_you_mean(word, ["micro_batch", "steps", "xla"]) == (f"did you mean {meant}? " if meant else "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (41.6, "42 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 00 h"),
        (273600, "3 d 04 h"),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text
