"""A reranker's directory is a CrossEncoder of sentence-transformers as it is, with equal scores."""

import numpy as np
import pytest

from bert_horovod.finetuning.kinds.kinds import open_predictor
from bert_horovod.inference.options import Options
from bert_horovod.inference.text_predictor import RerankPredictor
from bert_horovod.tasks.text_head import Reranking
from tests.toy_glue import write_checkpoint

PAIRS = [("good", "fine film"), ("bad film", "good fine bad"), ("fine", "bad")]


@pytest.mark.full
def test_cross_encoder_gives_the_same_scores(tmp_path):
    pytest.importorskip("torch")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    directory = write_checkpoint(tmp_path / "model", Reranking("label", ("query", "passage")))
    predictor = open_predictor(directory, Options())
    assert isinstance(predictor, RerankPredictor)
    ours = [score for (score,) in predictor.answers(tuple(map(list, zip(*PAIRS, strict=True))), packing=True)]
    model = sentence_transformers.CrossEncoder(str(predictor.directory), device="cpu")
    np.testing.assert_allclose(ours, model.predict(PAIRS), atol=2e-6)
    assert len(set(ours)) > 1
