"""lab/serving.py: both runtimes in one table."""

import pytest

from tests.lab.scripts import cells, run_script


@pytest.mark.slow
def test_a_line_for_each_length_and_batch():
    pytest.importorskip("tf2onnx")
    words = ("--model", "mini", "--threads", 1, "--length", 8, 16, "--batch", 2, "--rounds", 1, "--seconds", 0.1)
    done = run_script("serving", *words)
    assert done.returncode == 0, done.stderr
    title, heading, *lines = done.stdout.splitlines()
    assert title == "BERT-mini, float32, 1 threads"
    assert cells(heading)[1:3] == ["TensorFlow, sentences/s", "onnxruntime, sentences/s"]
    assert [cells(line)[0] for line in lines] == ["8 x 2", "16 x 2"]
    for line in lines:
        tensorflow, onnxruntime, ratio = (float(cell.replace(",", "").rstrip("x ")) for cell in cells(line)[1:])
        assert ratio == pytest.approx(onnxruntime / tensorflow, rel=0.05)
    assert "savedmodel: " in done.stderr
