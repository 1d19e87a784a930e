"""Small random Hugging Face models; no network."""

import os
import re

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_TF"] = "0"

import pytest

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "cat", "sat", "café", "Cat", "##s", "on", "a", "mat", ".", "é", "!", "北", "京", "##at", "c"),
]
SIZES = {"vocab_size": len(VOCABULARY), "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 20, "max_position_embeddings": 24, "type_vocab_size": 2}
ALBERT_SIZES = {"num_hidden_layers": 4, "embedding_size": 8, "num_hidden_groups": 2}
SIZES_OF = {"Bert": SIZES, "Albert": SIZES | ALBERT_SIZES}


def random_model(kind: str, scale: float = 0.2, **settings):
    """A transformers model with every parameter random, biases and LayerNorm included, in evaluation mode."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    name = re.split("For|Model$", kind)[0]
    config = getattr(transformers, f"{name}Config")(**{**SIZES_OF.get(name, {}), **settings})
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


@pytest.fixture
def pretraining_directory(tmp_path):
    """A BertForPreTraining directory as transformers saves it, with a vocab.txt."""
    directory = tmp_path / "pretraining"
    random_model("BertForPreTraining").save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    return directory
