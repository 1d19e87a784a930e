"""Directories of sentence-transformers: it and this program read each other's, and give the same vectors."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.inference.embedding_predictor import EmbeddingPredictor, unit
from bert_horovod.inference.masked_tokens import read_masked_model
from bert_horovod.inference.options import Options
from bert_horovod.interchange.exported import load_export
from bert_horovod.interchange.huggingface import HuggingFace, Pretrained
from bert_horovod.interchange.onnx_file import write_onnx
from bert_horovod.interchange.saved_model import write_text_model
from bert_horovod.interchange.sentence_transformers import SentenceVectors, vector_files, vectors_of
from bert_horovod.interchange.serving_graph import Served
from bert_horovod.model.parameters import SENTENCE_VECTORS
from bert_horovod.runs.opening import find_checkpoint
from tests.toy_glue import write_checkpoint
from tests.toy_vectors import MODELS, PROMPTS, TEXTS, write_vectors

TRANSFORMER, POOLING = {"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}
FILES = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json")


def contents(directory: Path) -> dict[str, dict]:
    """Files of sentence-transformers, and the number of tokens, which version 6 has among the tokenizer's settings."""
    read = {name: json.loads((directory / name).read_text(encoding="utf-8")) for name in FILES}
    read["tokens"] = json.loads((directory / "tokenizer_config.json").read_text())["model_max_length"]
    return read


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("torch")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return pytest.importorskip("sentence_transformers")


def ours(directory: Path, texts: list[str], column: str = "", **options) -> np.ndarray:
    """The vectors of texts of a column."""
    predictor = EmbeddingPredictor(find_checkpoint(directory), Options(**options))
    return predictor.vectors(texts, predictor.settings.prompts.get(column, ""))


@pytest.mark.full
@pytest.mark.parametrize(("name", "pooling"), [*((name, "mean") for name in MODELS), ("bert", "first")])
def test_sentence_transformers_loads_our_directory_and_gives_our_vectors(tmp_path, library, name, pooling):
    directory = write_vectors(tmp_path / "ours", name, pooling=pooling)
    theirs = library.SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(TEXTS), ours(directory, TEXTS), atol=1e-5)
    np.testing.assert_allclose(theirs.encode_query(TEXTS), ours(directory, TEXTS, "query"), atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(TEXTS), ours(directory, TEXTS, "passage"), atol=1e-5)
    first = theirs.encode(TEXTS, prompt_name="passage", truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(first, ours(directory, TEXTS, "passage", dimensions=8), atol=1e-5)
    theirs.save(str(tmp_path / "saved"))

    modules = library.sentence_transformer.modules
    transformer = modules.Transformer(str(directory), max_seq_length=24)
    own_pooling = modules.Pooling(theirs.get_embedding_dimension(), "cls" if pooling == "first" else "mean")
    prompts = {"query": PROMPTS[0], "document": PROMPTS[1], "passage": PROMPTS[1]}
    made = library.SentenceTransformer(
        modules=[transformer, own_pooling, modules.Normalize()], prompts=prompts, similarity_fn_name="cosine"
    )
    made.save(str(tmp_path / "made"))
    assert contents(tmp_path / "saved") == contents(tmp_path / "made")


def served(directory: Path, dtype: tf.DType) -> tuple[Served, Pretrained]:
    architecture = find_checkpoint(directory).reader.contents().architectures[0]
    pretrained = find_checkpoint(directory).reader.read(architecture)
    parameters = {name: pretrained.parameters[name] for name in architecture.parameters(pretrained.model)}
    return Served(architecture, pretrained.model, parameters, dtype), pretrained


@pytest.mark.full
@pytest.mark.parametrize(("name", "pooling"), [("bert", "first"), ("modernbert", "mean")])
def test_an_onnx_file_has_pooling_and_normalising_in_its_graph(tmp_path, name, pooling):
    pytest.importorskip("tf2onnx")
    transformers = pytest.importorskip("transformers")
    directory = write_vectors(tmp_path / "ours", name, pooling=pooling)
    write_onnx(tmp_path, served(directory, tf.int64)[0])
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    rows = tokenizer(TEXTS, padding=True, truncation=True, max_length=24, return_tensors="np")
    vectors = load_export(tmp_path)("", dict(rows))["sentence_embedding"]
    np.testing.assert_allclose(vectors, ours(directory, TEXTS), atol=1e-5)


@pytest.mark.full
def test_a_saved_model_with_its_tokenizer_takes_texts_and_has_a_signature_of_each_prompt(tmp_path):
    pytest.importorskip("tensorflow_text")
    directory = write_vectors(tmp_path / "ours")
    write_text_model(tmp_path / "made", *served(directory, tf.int32), directory)
    call, texts = load_export(tmp_path / "made"), np.array(TEXTS[:3])
    for signature, column in (("serving_default", ""), ("query", "query"), ("document", "passage")):
        vectors = call(signature, {"text": texts})["sentence_embedding"]
        np.testing.assert_allclose(vectors, ours(directory, TEXTS[:3], column), atol=1e-5)


@pytest.mark.full
def test_vectors_of_a_directory_of_theirs_are_theirs_and_import_keeps_them(tmp_path, library, monkeypatch):
    monkeypatch.setattr("bert_horovod.runtime.devices.use_devices", lambda *arguments: None)
    directory, modules = write_vectors(tmp_path / "start"), library.sentence_transformer.modules
    made = library.SentenceTransformer(
        modules=[modules.Transformer(str(directory), max_seq_length=16), modules.Pooling(32, "cls")],
        prompts={"query": "good ", "document": ""},
        default_prompt_name="query",
        similarity_fn_name="dot",
        device="cpu",
    )
    made.save(str(tmp_path / "theirs"))
    theirs, imported = tmp_path / "theirs", tmp_path / "imported"
    assert vectors_of(HuggingFace(theirs).configuration) == SentenceVectors(
        "first", False, {"query": "good "}, "query", 16, similarity="dot"
    )
    assert json.loads((theirs / FILES[2]).read_text())["similarity_fn_name"] == "dot"
    np.testing.assert_allclose(made.encode(TEXTS), ours(theirs, TEXTS, "query"), atol=1e-5)
    np.testing.assert_allclose(made.encode(TEXTS, prompt=""), ours(theirs, TEXTS), atol=1e-5)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for checkpoint in (theirs, imported):
        if checkpoint == imported:
            assert dispatch(parse(["bert-horovod", "import", str(theirs), str(imported)])) == 0
        words = ["--checkpoint", checkpoint, "--input", tmp_path / "in.jsonl", "--vectors", tmp_path / "out.npy"]
        assert dispatch(parse(["bert-horovod", "predict", *map(str, words)])) == 0
        np.testing.assert_allclose(made.encode(TEXTS), np.load(tmp_path / "out.npy"), atol=1e-5)
    again = library.SentenceTransformer(str(imported), device="cpu", local_files_only=True)
    np.testing.assert_allclose(made.encode(TEXTS), again.encode(TEXTS), atol=1e-5)


def test_no_limit_of_a_texts_tokens_is_written_as_the_models_positions():
    model = MODELS["bert"][0]
    files = vector_files(model, {SENTENCE_VECTORS: {"max_seq_length": 10**30}})  # of transformers' tokenizers
    assert json.loads(files["sentence_bert_config.json"])["max_seq_length"] == model.max_position_embeddings


def test_the_files_have_the_names_that_text_embeddings_inference_reads(tmp_path):
    directory = write_vectors(tmp_path / "model", prompts=())
    pooling = json.loads((directory / "1_Pooling" / "config.json").read_text())
    modes = {name for name in pooling if name.startswith("pooling_mode_")}
    assert {"pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"} < modes
    assert {name for name in modes if pooling[name]} == {"pooling_mode_mean_tokens"}
    assert pooling.keys() - modes == {"word_embedding_dimension", "include_prompt"}
    assert json.loads((directory / "sentence_bert_config.json").read_text())["max_seq_length"] == 24
    modules = json.loads((directory / "modules.json").read_text())
    assert [(module["path"], module["type"].rpartition(".")[2]) for module in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    assert json.loads((directory / "config_sentence_transformers.json").read_text())["prompts"] == {}
    (architecture, *_) = find_checkpoint(directory).reader.contents().architectures
    assert architecture.configuration(MODELS["bert"][0])[SENTENCE_VECTORS]["max_seq_length"] == 24


@pytest.mark.parametrize(
    ("file", "content", "kind", "message"),
    [
        ("modules.json", [{"path": "1_Pooling", "type": "x.Pooling"}, {"path": "2", "type": "x.Dense"}], UserError,
         "the module 'Dense' is not supported; expected Transformer, Pooling and perhaps Normalize"),
        ("modules.json", {}, DamagedData, "modules.json is damaged: expected a list of modules"),
        ("modules.json", [], DamagedData, "modules.json is damaged: expected a list of modules"),
        ("modules.json", [TRANSFORMER], UserError, "its modules are Transformer; expected"),
        ("modules.json", [TRANSFORMER, {"path": "1_Pooling", "type": "x.SpladePooling"}], UserError, "SpladePooling"),
        ("modules.json", [TRANSFORMER, POOLING, POOLING], UserError, "are Transformer, Pooling, Pooling; expected"),
        ("modules.json", [POOLING, TRANSFORMER], UserError, "its modules are Pooling, Transformer; expected"),
        ("modules.json", [TRANSFORMER, POOLING | {"path": "../../x"}], UserError, "'../../x' leads out of"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, UserError, "expected mean or cls"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, UserError, "expected mean or cls"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, UserError, "the pooling [] is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": 5}, DamagedData, "pooling_mode = 5; expected mean or cls"),
        ("1_Pooling/config.json", {"word_embedding_dimension": 7}, UserError, "_dimension = 7; expected 32"),
        ("config_sentence_transformers.json", {"prompts": [1]}, DamagedData, "prompts = [1]; expected texts by names"),
        ("config_sentence_transformers.json", {"prompts": {"query": 5}}, DamagedData, "prompts = {'query': 5}"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, UserError, "'x' is none of its prompts"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "x"}, UserError, "similarity_fn_name = 'x'"),
        ("1_Pooling/config.json", {"include_prompt": False}, UserError, "include_prompt = false is not supported"),
        ("config_sentence_transformers.json", {"truncate_dim": "8"}, DamagedData, "dimensions = '8'"),
        ("sentence_bert_config.json", {"max_seq_length": [8]}, DamagedData, "max_seq_length = [8]"),
    ],
)  # fmt: skip
def test_what_is_not_supported_and_what_is_damaged_is_named(tmp_path, file, content, kind, message):
    directory = write_vectors(tmp_path / "model")
    (directory / file).write_text(json.dumps(content))
    for use in (lambda: EmbeddingPredictor(find_checkpoint(directory), Options()), HuggingFace(directory).contents):
        with pytest.raises(ReportedError) as raised:
            use()
        assert type(raised.value) is kind
        assert message in str(raised.value)


def test_a_masked_token_head_is_read_whatever_modules_are_around_it_and_without_it_the_encoder_is_named(tmp_path):
    directory = write_checkpoint(tmp_path / "masked")
    modules = [TRANSFORMER, {"path": "1_SpladePooling", "type": "x.SpladePooling"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    assert read_masked_model(find_checkpoint(directory)).pairs
    with pytest.raises(UserError, match=r"no masked-token head .* BertForMaskedLM, not a sentence encoder"):
        read_masked_model(find_checkpoint(write_vectors(tmp_path / "model")))


def test_a_directory_without_these_files_has_the_mean_as_sentence_transformers_takes_it(tmp_path):
    directory = write_vectors(tmp_path / "model", prompts=())
    whole = ours(directory, TEXTS)
    (directory / "modules.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    del config[SENTENCE_VECTORS]
    (directory / "config.json").write_text(json.dumps(config))
    plain = ours(directory, TEXTS, sequence_length=24)
    assert not np.allclose(np.linalg.norm(plain, axis=1), 1)
    np.testing.assert_allclose(unit(plain), whole, atol=1e-6)


def test_the_length_stands_in_a_file_of_an_older_name_too(tmp_path):
    directory = write_vectors(tmp_path / "model")
    (directory / "sentence_bert_config.json").rename(directory / "sentence_xlm-roberta_config.json")
    assert vectors_of(HuggingFace(directory).configuration).max_seq_length == 24
