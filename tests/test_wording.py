"""Words that many messages need."""

import pytest

from bert_horovod.wording import counted, did_you_mean


@pytest.mark.parametrize(("number", "words"), [(0, "0 shards"), (1, "1 shard"), (2000, "2,000 shards")])
def test_things_are_counted_in_the_singular_and_the_plural(number, words):
    assert counted(number, "shard") == words


@pytest.mark.parametrize(
    ("word", "meant"),
    [("microbatch", "micro_batch"), ("Micro-Batch", "micro_batch"), ("stesp", "steps"), ("zebra", None), ("", None)],
)
def test_a_near_word_is_asked_for(word, meant):
    assert did_you_mean(word, ["micro_batch", "steps", "xla"]) == (f"did you mean {meant}? " if meant else "")
