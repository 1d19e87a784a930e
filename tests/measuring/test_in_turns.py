"""Contestants in rounds."""

from bert_horovod.errors import RunError
from bert_horovod.measuring.bench_child import in_turn


def test_contestants_are_measured_in_turn_and_one_that_fails_is_left_out():
    measured, heard = [], []

    def measure(name: str, turn: int) -> int:
        measured.append((name, turn))
        if (name, turn) == ("b", 1):
            raise RunError("a cable was pulled")
        return len(measured)

    figures = in_turn("abc", 3, measure, lambda name, error: heard.append((name, str(error))))
    assert "".join(name for name, _ in measured) == "abcabcac"
    assert figures == {"a": [1, 4, 7], "c": [3, 6, 8]}
    assert heard == [("b", "a cable was pulled")]
