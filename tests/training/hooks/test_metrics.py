"""What a line of metrics.jsonl holds."""

from bert_horovod.training.hooks.metrics import Interval


def test_the_share_of_the_peak_is_that_of_all_ranks_and_null_where_the_peak_is_unknown(monkeypatch):
    clock = iter([100.0, 104.0, 104.0])
    monkeypatch.setattr("bert_horovod.training.hooks.metrics.time.monotonic", lambda: next(clock))
    interval = Interval()
    for _ in range(2):
        interval.add(rows=32, input_wait_s=0.5, reduce_wait_s=0.25, tokens=100.0)
    interval.saving_s = 0.5
    rates = interval.rates(800.0, flops_per_row=1e6, peak_flops_per_s=64e6)
    assert rates == {
        "rows_per_s": 16.0,
        "tokens_per_s": 200.0,
        "flops_per_s": 16e6,
        "flops_share": 0.25,
        "step_s": 2.0,
        "input_wait_s": 0.5,
        "saving_s": 0.25,
        "reduce_wait_s": 0.25,
    }
    assert interval.rates(800.0, flops_per_row=1e6, peak_flops_per_s=None)["flops_share"] is None


def test_without_times_the_wait_for_all_reduces_is_unknown():
    interval = Interval()
    interval.add(rows=32, input_wait_s=0.5, reduce_wait_s=None, tokens=100.0)
    assert interval.rates(100.0, 1e6, None)["reduce_wait_s"] is None
