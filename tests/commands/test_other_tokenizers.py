"""From text to a checkpoint that guesses, with tokenizers that are not BERT's, as the commands are typed."""

import itertools
import json
import shutil

import numpy as np
import pytest

from bert_horovod.batches.layout import check_vocabulary
from bert_horovod.batches.text.rows import open_rows
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.initial import Initial
from tests.commands.conftest import command
from tests.toy_runs import metrics, newest, train_recipe
from tests.toy_tokenizers import KINDS, TEXT, robertas, tokenizer_directory, write_kind, xlm_robertas
from tests.toys import TOY_MODEL, toy_recipe

OBJECTIVE = {"pair": "none", "whole_word_masking": True}


def prepare(directory, tokenizer, *words):
    texts = directory / "text"
    texts.mkdir(exist_ok=True)
    for number in range(30):
        (texts / f"{number:02d}.txt").write_text("\n\n".join(TEXT) * (1 + number % 3) + f" {number}.", encoding="utf-8")
    store = directory / "store"
    words = words or ("--output_dir", store)
    assert command("prepare", "--input", texts, "--tokenizer", tokenizer, "--held_out", 0.3, *words) == 0
    return open_store(store)


def recipe_for(store):
    model = TOY_MODEL | {"vocab_size": len(store.vocabulary), "type_vocab_size": 1}
    return toy_recipe(model=model, objective=OBJECTIVE, phase={"steps": 4, "learning_rate": 0.01})


@pytest.mark.full
@pytest.mark.parametrize("kind", ["robertas", "xlm_robertas"])
def test_a_store_a_run_and_its_checkpoint_have_the_tokenizer(tmp_path, capsys, kind):
    store = prepare(tmp_path, write_kind(tmp_path / "tokenizer", kind))
    assert isinstance(store.tokenizer_settings, JsonTokenizer)
    assert not (store.path / "vocab.txt").exists()
    run = train_recipe(recipe_for(store), store, tmp_path / "run", max_steps=2)
    train_recipe(recipe_for(store), store, run)
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4]
    assert (newest(run) / "tokenizer.json").read_text(encoding="utf-8") == store.tokenizer_settings.text
    pretrained = find_checkpoint(newest(run)).reader.read()
    assert (pretrained.vocabulary, pretrained.tokenizer_settings) == (store.vocabulary, store.tokenizer_settings)
    assert "--set objective.pair=none --data_dir" in capsys.readouterr().out  # in the next command
    assert command("evaluate", "--checkpoint", run, "--data_dir", store.path, "--sequence_length", 16, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 3
    assert command("fill-mask", "--checkpoint", run, "The cat <mask> on the [MASK].") == 0
    _text, *guesses = capsys.readouterr().out.splitlines()
    assert len(guesses) == 2
    assert command("inspect", "--data_dir", store.path) == 0
    assert store.tokenizer_settings.sha256[:8] in capsys.readouterr().out
    shown = ("--row", 0, "--rows", 30, "--sequence_length", 32, "--set", "objective.pair=none")
    assert command("inspect", "--data_dir", store.path, *shown) == 0
    out = capsys.readouterr().out
    assert "unbelievable" in out
    assert not {"Ġ", "▁"} & set(out)
    assert command("verify", "--data_dir", store.path) == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_opens_in_transformers_with_the_rows_of_the_run(tmp_path, transformers, kind):
    store = prepare(tmp_path, write_kind(tmp_path / "tokenizer", kind))
    run = train_recipe(recipe_for(store), store, tmp_path / "run", max_steps=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(newest(run))
    model = transformers.AutoModelForMaskedLM.from_pretrained(newest(run))
    assert model.config.pad_token_id == tokenizer.pad_token_id
    tokens = np.concatenate([np.asarray(shard.tokens) for shard in store.shards])
    first = tokenizer(TEXT[0], add_special_tokens=False).input_ids
    places = [at for at in np.flatnonzero(tokens == first[0]) if tokens[at : at + len(first)].tolist() == first]
    assert places
    rows = open_rows(store, recipe_for(store), 0, "train")
    batch = rows.assemble(np.arange(4))
    assert set(batch["input_ids"][:, 0]) == {tokenizer.cls_token_id}
    assert (batch["input_ids"] == tokenizer.mask_token_id).any()
    assert (batch["input_ids"] == tokenizer.sep_token_id).any()


def test_a_sentence_that_follows_another_has_its_space(tmp_path):
    store = prepare(tmp_path, write_kind(tmp_path / "tokenizer", "robertas"))
    shard = store.shards[0]
    tokens, sentences, sections = (np.asarray(each) for each in (shard.tokens, shard.sentences, shard.sections))
    library = store.tokenizer_settings.library()
    texts = {
        library.decode(tokens[sentences[begin] : sentences[end]].tolist())
        for begin, end in itertools.pairwise(sections)
    }
    whole = "\n\n".join(TEXT)
    assert any(text.startswith("The cat sat") and "run. In 1871" in text for text in texts)
    assert all("文章です。これは" in text for text in texts if "日本語" in text)  # no space between these
    assert whole.startswith("The cat")


@pytest.mark.full
def test_a_roberta_of_transformers_is_trained_on_and_learns_entities(tmp_path, transformers, capsys):
    tokenizer, start = write_kind(tmp_path / "tokenizer", "robertas"), tmp_path / "roberta"
    store = prepare(tmp_path, tokenizer)
    config = transformers.RobertaConfig(
        **TOY_MODEL | {"vocab_size": len(store.vocabulary), "max_position_embeddings": 34},
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(start)
    for path in tokenizer.iterdir():
        shutil.copy(path, start)
    model = TOY_MODEL | {"architecture": "roberta", "vocab_size": len(store.vocabulary)}
    recipe = toy_recipe(model=model, objective=OBJECTIVE, phase={"steps": 2, "learning_rate": 0.01})
    run = train_recipe(recipe, store, tmp_path / "run", initial=Initial(find_checkpoint(start)))
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(run / "model")).__name__ == "RobertaForMaskedLM"
    sentences = "The\tO\ncat\tB-ANIMAL\nsat\tO\n\nthe\tO\ndog\tB-ANIMAL\n\n" * 40
    (tmp_path / "train.tsv").write_text(sentences, encoding="utf-8")
    words = ("--train_file", tmp_path / "train.tsv", "--dev_file", tmp_path / "train.tsv")
    tagger = tmp_path / "tagger"
    words += ("--output_dir", tagger, "--set", "execution.xla=off", "--set", "phase.0.learning_rate=0.01")
    assert command("finetune", "--task", "ner", "--checkpoint", run, *words) == 0
    (tmp_path / "text.txt").write_text("The cat sat on the mat", encoding="utf-8")
    found = tmp_path / "found.tsv"
    assert command("predict", "--checkpoint", tagger, "--input", tmp_path / "text.txt", "--output", found) == 0
    assert "\t4\t7\tANIMAL\t" in found.read_text(encoding="utf-8")
    capsys.readouterr()


@pytest.mark.full
def test_another_tokenizer_is_refused(tmp_path, capsys):
    store = prepare(tmp_path, write_kind(tmp_path / "tokenizer", "robertas"))
    run = train_recipe(recipe_for(store), store, tmp_path / "run", max_steps=1)
    shutil.rmtree(store.path)
    tokenizer = tokenizer_directory(tmp_path / "other", robertas(399), tokenizer_class="RobertaTokenizer")
    other = prepare(tmp_path, tokenizer)
    words = ("evaluate", "--checkpoint", run, "--data_dir", other.path, "--sequence_length", "16")
    assert command(*words) == 2
    assert f"prepare the data with --vocab {newest(run)}" in capsys.readouterr().err


def test_a_damaged_tokenizer_of_a_store_is_told(tmp_path):
    store = prepare(tmp_path, write_kind(tmp_path / "tokenizer", "robertas"))
    file = store.path / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("cat", "cut"), encoding="utf-8")
    with pytest.raises(DamagedData, match=r"tokenizer\.json is not the vocabulary that the store was made with"):
        open_store(store.path)
    file.unlink()
    with pytest.raises(DamagedData, match=r"tokenizer\.json"):
        open_store(store.path)


def test_pairs_need_a_tokenizer_that_makes_them_alike(tmp_path):
    store = prepare(tmp_path, write_kind(tmp_path / "tokenizer", "robertas"))
    model = TOY_MODEL | {"vocab_size": len(store.vocabulary)}
    check_vocabulary(toy_recipe(model=model, objective={"pair": "none"}), store)
    with pytest.raises(UserError, match=r"objective\.pair = 'next_sentence': the tokenizer .* expected"):
        check_vocabulary(toy_recipe(model=model), store)


@pytest.mark.full
def test_a_vocabulary_of_more_than_65536_tokens_is_kept_in_four_bytes(tmp_path):
    tokenizer = xlm_robertas()
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] += [[f"▁w{number}", -20.0] for number in range(250_000)]
    directory = tokenizer_directory(tmp_path / "tokenizer", tokenizer.from_str(json.dumps(content)))
    store = prepare(tmp_path, directory)
    assert len(store.vocabulary) > 250_000
    assert store.shards[0].tokens.dtype == np.uint32
    rows = open_rows(store, recipe_for(store), 0, "train")
    batch = rows.assemble(np.arange(8))
    assert batch["input_ids"].max() > 65536  # a random token in place of a masked one
