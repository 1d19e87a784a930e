"""What a run reads of each store, for people: shares, tokens and epochs, and warnings."""

from bert_horovod.batches.mixing import PERIOD
from bert_horovod.batches.text.mixture_table import mixture_lines
from tests.toys import toy_recipe

PHASE = {"steps": 4, "global_batch": 50, "sequence_length": 32}


def lines(mixture, tokens, **phase):
    return list(mixture_lines(toy_recipe(data={"mixture": mixture}, phase=PHASE | phase), tokens))


def test_shares_tokens_and_epochs_are_told_by_phase_and_of_the_run():
    told = lines({"general": 0.7, "own": 0.3}, {"general": 6400, "own": 960})
    assert [" ".join(line.split()) for line in told] == [
        "phase 0: general 70.0% 4,480 tokens 0.7 epochs",
        "phase 0: own 30.0% 1,920 tokens 2 epochs",
        "run: general 0.7 epochs of 6,400 tokens",
        "run: own 2 epochs of 960 tokens",
    ]


def test_a_store_that_may_get_no_row_of_a_phase_is_warned_of():
    few, enough = ({"general": 1 - share, "own": share} for share in (0.004, 0.006))
    (warning,) = (line for line in lines(few, {"general": 6400, "own": 960}) if line.startswith("warning"))
    assert warning.startswith("warning: own has less than one row in phase 0, so perhaps none.")
    assert not any("less than one row" in line for line in lines(enough, {"general": 6400, "own": 960}))
    assert not any("less than one row" in line for line in lines({"general": 1, "own": 0}, {"general": 64, "own": 9}))


def test_a_store_of_hardly_any_weight_has_a_row_of_each_period():
    told = lines({"general": 1, "own": 1e-9}, {"general": 10**9, "own": 32}, steps=10 * PERIOD)
    assert any(line.startswith("run:     own      500 epochs") for line in told)


def test_weights_may_be_as_large_as_numbers_are():
    told = lines({"general": 1e308, "own": 1e308}, {"general": 6400, "own": 960})
    assert told[0] == "data.mixture: its numbers sum to inf, and are divided by that"
    assert " 50.0% " in told[1]
