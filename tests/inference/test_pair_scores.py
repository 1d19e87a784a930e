"""Minimal pairs are scored as an own transcription on transformers' models does, whatever the rows and the ranks."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.examples.masked_copies import MaskedCopies
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.pair_files import FILE, Pairs
from bert_horovod.inference.masked_tokens import read_masked_model
from bert_horovod.inference.pair_scores import PairScorer, PairTokens, accuracies
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runtime import lazy_tensorflow as tf
from tests.interchange.conftest import SIZES, VOCABULARY, random_model
from tests.toy_tokenizers import TEXT, write_kind

WORDS = " ".join(TEXT[:2]).split()
KINDS = {"Bert": "bert", "Albert": "xlm_robertas", "Roberta": "robertas", "ModernBert": "modernberts"}
IDS = dict.fromkeys(("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 2)


def pairs_of(sentences: list[tuple[str, str]]) -> Pairs:
    places = [(Path("a.jsonl"), number) for number in range(1, len(sentences) + 1)]
    return Pairs(sentences, places, {FILE: ["a"] * len(sentences)})


def random_pairs(count: int, words: list[str] = WORDS, seed: int = 0) -> Pairs:
    """Pairs of 1 to 12 words; the last one is longer than a row of 64 positions."""
    random = np.random.default_rng(seed)

    def sentence(most: int) -> str:
        return " ".join(random.choice(words, random.integers(1, most + 1)))

    pairs = [(sentence(12), sentence(12)) for _ in range(count - 1)]
    return pairs_of([*pairs, (" ".join(words[:1] * 70), sentence(3))])


def write(directory: Path, family: str) -> Path:
    """A random model as transformers saves it, with a small tokenizer of another kind for each family."""
    transformers = pytest.importorskip("transformers")
    if family == "Bert":
        directory.mkdir()
        (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
        transformers.BertTokenizerFast(vocab=str(directory / "vocab.txt")).save_pretrained(directory)
    else:
        write_kind(directory, KINDS[family])
    size = len(transformers.AutoTokenizer.from_pretrained(directory))
    sizes = SIZES | {"vocab_size": size, "max_position_embeddings": 402 if family == "Roberta" else 400}
    if family == "Roberta":
        sizes["type_vocab_size"] = 1
    if family == "ModernBert":
        sizes |= IDS | {"pad_token_id": 3, "local_attention": 8, "global_attn_every_n_layers": 2, "hidden_size": 24}
        del sizes["type_vocab_size"]
    random_model(f"{family}ForMaskedLM", 0.3, **sizes, attn_implementation="eager").save_pretrained(directory)
    return directory


def transcribed(directory: Path, sentences: list[str], within_words: bool) -> tuple[list[np.ndarray], list[list[int]]]:
    """Each token's log-probability, sentence by sentence, by transformers' model and tokenizer; and the tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory, attn_implementation="eager").eval()
    scores, tokens = [], []
    for sentence in sentences:
        encoded = tokenizer(sentence, return_special_tokens_mask=True)
        ids, words = encoded["input_ids"], encoded.word_ids()
        places = [place for place, special in enumerate(encoded["special_tokens_mask"]) if not special]
        copies = torch.tensor([ids] * len(places))
        for copy, place in zip(copies, places, strict=True):
            copy[place] = tokenizer.mask_token_id
            later = [other for other in places if other > place and words[other] == words[place]]
            copy[later if within_words else []] = tokenizer.mask_token_id
        with torch.no_grad():
            shares = torch.log_softmax(model(copies).logits.double(), -1)
        scores.append(np.array([shares[copy, place, ids[place]] for copy, place in enumerate(places)]))
        tokens.append([ids[place] for place in places])
    return scores, tokens


def scorer_of(directory: Path, pairs: Pairs, **options) -> tuple[PairScorer, PairTokens, dict[str, np.ndarray]]:
    pretrained = read_masked_model(find_checkpoint(directory))
    model = pretrained.model
    tokens = PairTokens(pairs, pretrained.vocabulary, pretrained.tokenizer_settings, model.max_position_embeddings)
    return PairScorer(tokens, model, **options), tokens, pretrained.parameters


@pytest.mark.parametrize(
    ("family", "within_words"),
    [
        ("Bert", True),
        *(pytest.param(family, True, marks=pytest.mark.full) for family in list(KINDS)[1:]),
        *(pytest.param(family, False, marks=pytest.mark.full) for family in KINDS),
    ],
)
def test_tokens_have_the_log_probabilities_of_a_transcription_on_transformers(tmp_path, family, within_words):
    directory = write(tmp_path / "model", family)
    pairs = random_pairs(100, VOCABULARY[5:] if family == "Bert" else WORDS)
    scorer, tokens, parameters = scorer_of(directory, pairs, within_words=within_words)
    expected, ids = transcribed(directory, [text for both in pairs.sentences for text in both], within_words)
    assert tokens.ids.tolist() == list(chain(*ids))
    assert tokens.counts.max() > 62
    np.testing.assert_allclose(scorer.log_probabilities(parameters), np.concatenate(expected), rtol=0, atol=1e-4)
    sums = np.array([score.sum() for score in expected])
    assert scorer(parameters)["accuracy"] == np.mean(sums[::2] > sums[1::2])


def test_the_packing_changes_nothing(tmp_path):
    directory, pairs = write(tmp_path / "model", "Bert"), random_pairs(60, VOCABULARY[5:])
    layouts = [{}, {"rows": 3}, {"row_length": 16}, {"row_length": 200}]
    judged = []
    for layout in layouts:
        scorer, _, parameters = scorer_of(directory, pairs, **layout)
        judged.append((scorer.log_probabilities(parameters), scorer(parameters)))
    for scores, result in judged[1:]:
        np.testing.assert_allclose(scores, judged[0][0], atol=2e-6)
        assert result == judged[0][1]


def test_of_long_rows_fewer_are_computed_at_once(tmp_path, monkeypatch):
    directory, pairs, made = write(tmp_path / "model", "Bert"), random_pairs(20, VOCABULARY[5:]), []
    assemble = MaskedCopies.assemble
    monkeypatch.setattr(
        MaskedCopies, "assemble", lambda copies, rows: made.append((copies.length, len(rows))) or assemble(copies, rows)
    )
    scorer, _, parameters = scorer_of(directory, pairs_of([*pairs.sentences, ("a " * 300, "a")]), rows=4)
    scorer(parameters)
    assert set(made) == {(64, 4), (128, 4), (512, 1)}


@pytest.mark.slow
def test_two_ranks_give_the_bits_of_one(two_ranks, tmp_path):
    directory = write(tmp_path / "model", "Bert")
    one = scores_of(World(), directory)
    for rank in two_ranks.run(scores_of, directory):
        np.testing.assert_array_equal(rank.value, one)


def scores_of(world: World, directory: Path) -> np.ndarray:
    """A job for two_ranks; of 500 rows at once one rank computes none."""
    both = [scorer_of(directory, random_pairs(40, VOCABULARY[5:]), world=world, rows=rows) for rows in (8, 500)]
    return np.concatenate([scorer.log_probabilities(values, lambda *_: None) for scorer, _, values in both])


def test_float32_is_whole_while_pairs_are_judged_and_then_as_the_run_has_it(tmp_path):
    """A run on a GPU trains with factors of 10 bits, and evaluate, which judges the same way, must agree with it."""
    experimental, while_judging = tf.config.experimental, []
    scorer, _, parameters = scorer_of(write(tmp_path / "model", "Bert"), random_pairs(3, VOCABULARY[5:]))
    for before in (True, False):
        experimental.enable_tensor_float_32_execution(before)
        scorer(parameters, lambda *_: while_judging.append(experimental.tensor_float_32_execution_enabled()))
        assert experimental.tensor_float_32_execution_enabled() == before
    experimental.enable_tensor_float_32_execution(True)  # as TensorFlow begins
    assert set(while_judging) == {False}


def test_constant_logits_are_right_in_half_of_the_pairs(tmp_path):
    random = np.random.default_rng(0)
    words = [[" ".join(random.choice(VOCABULARY[5:9], 7)) for _ in range(2)] for _ in range(30)]
    scorer, _, parameters = scorer_of(write(tmp_path / "model", "Bert"), pairs_of([tuple(each) for each in words]))
    result = scorer({name: 0 * value for name, value in parameters.items()})
    assert (result["accuracy"], result["ties"]) == (0.5, 30)
    assert scorer(parameters)["ties"] == 0


def test_unlike_texts_of_equal_tokens_are_ties(tmp_path):
    pairs = pairs_of([("the cat sat", "The  CAT sat"), ("the cat sat", "the cat cat")])
    scorer, _, parameters = scorer_of(write(tmp_path / "model", "Bert"), pairs)
    assert scorer(parameters)["ties"] == 1


def test_bfloat16_is_near_float32(tmp_path):
    directory, pairs = write(tmp_path / "model", "Bert"), random_pairs(60, VOCABULARY[5:])
    scores = []
    for dtype in ("float32", "bfloat16"):
        scorer, _, parameters = scorer_of(directory, pairs, dtype=dtype)
        scores.append(scorer.log_probabilities(parameters))
    assert 1e-4 < np.abs(scores[0] - scores[1]).max() < 0.3


def test_accuracies_are_means_over_pairs_and_then_over_files():
    pairs = pairs_of([("a", "b")] * 6)._replace(
        groups={
            FILE: ["x", "x", "y", "y", "y", "y"],
            "field": ["", "", "f", "g", "f", "f"],
            "linguistics_term": [""] * 6,
        }
    )
    result = accuracies(pairs, np.array([1, 0, 1, 1, 0.5, 1]))
    assert (result["pairs"], result["ties"]) == (6, 1)
    assert result["accuracy"] == (0.5 + 0.875) / 2
    x, y = result["groups"][FILE].values()
    assert (x["accuracy"], x["standard_error"]) == (0.5, 0.5)  # sqrt(1/2) / sqrt(2)
    assert (y["accuracy"], y["standard_error"]) == (0.875, 0.125)  # 0.25 / sqrt(4)
    assert result["standard_error"] == pytest.approx(np.hypot(0.5, 0.125) / 2)
    assert result["groups"]["field"]["g"] == {"pairs": 1, "accuracy": 1.0, "standard_error": None, "ties": 0}
    assert "linguistics_term" not in result["groups"]
