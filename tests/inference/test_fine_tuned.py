"""Rows for one line are of few lengths."""

from bert_horovod.inference.predicting import line_length


def test_a_line_gets_the_next_power_of_two_from_16_on_and_never_more_than_the_row():
    lengths = {5: 16, 16: 16, 17: 32, 32: 32, 70: 100, 300: 100}
    assert {tokens: line_length(tokens, most=100) for tokens in lengths} == lengths
