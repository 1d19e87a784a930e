"""The table of measurements."""

from bert_horovod.reporting.tables import ratio, table


def test_columns_without_a_value_are_left_out_and_missing_values_shown():
    rows = [
        {"configuration": "ours", "step_s": 0.5, "flops_per_s": 3e9, "share": 0.25, "peer": 2.0},
        {"configuration": "theirs", "step_s": 1.0, "memory_bytes": 3 << 29},
    ]
    heading, ours, theirs = table(rows, {"peer": ("rows/s vs theirs", ratio)}).splitlines()
    assert heading.split("  ")[0] == "configuration"
    assert "first step s" not in heading
    assert ours.split() == ["ours", "0.5", "3.0", "25.0%", "-", "2.00", "x"]
    assert theirs.split() == ["theirs", "1", "-", "-", "1.50", "-"]
    assert len(heading) == len(ours) == len(theirs)
