"""An architecture of the encoder: its parameters, its computation, and its names in other programs' files.

A new architecture is a file with a subclass of `Family`, its computation beside it, and a line
in families.py. BERT's is bert.py with bert_layers.py.
"""

import abc
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

from bert_horovod.model.layers import attention_bias, sequences_at
from bert_horovod.model.parameters import Shapes
from bert_horovod.recipe.sections import Model


class Family(abc.ABC):
    """What the models of one architecture share. It holds no state.

    Attributes:
        model_type: its name in Hugging Face's config.json.
        title: its name in messages, with an article.
        layers: the module with `embed` and `layer`, as bert_layers.py has them.
        textbook: the module with `encode`, as plain.py has it; with a shared head also `text_features`.
        class_prefix: the beginning of the names of Hugging Face's classes.
        chosen_by: settings of [model]; a model is one of this family if one of them is not 0. BERT, which has none, is
            what no other family is.
        required: keys of config.json, and the only value of each that is supported.
        unused: keys of config.json, of dropouts that training here does not have.
        google_config_file: the configuration beside Google's TF1 checkpoints; None if there are no such checkpoints.
        unseen_in_shapes: settings of [model] that change what is computed, but no parameter's shape.
        token_ids: keys of config.json that are ids of tokens, and the special token of each, as in BERT_TOKENS of
            interchange/tokenizer_classes.py.
        kernels: the module of gpu_kernels/ that computes its layer, as bert_layer.py does; None if there is none.
        segments: whether the model sees which of two texts a token is of; else only [SEP] between them tells.
        shared_head: whether the layer between encoder and output (TRANSFORM and its norm) is the same in all classes;
            else a classifier has a pooler there, and answers have nothing.
        heads: names of heads in Hugging Face's files where they depend on the class: by the class's name behind
            class_prefix, their names by those of parameters.py, both without ".weight" and ".bias".
        other_names: further values of model_type whose models have the same parameters and compute the same, with the
            beginning of their classes' names. They are read; what is written has this family's own name.
        price: what `smaller` costs, for people.
    """

    model_type: ClassVar[str]
    title: ClassVar[str]
    class_prefix: ClassVar[str]
    layers: ClassVar[ModuleType]
    textbook: ClassVar[ModuleType]
    chosen_by: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[Mapping[str, Any]] = {}
    unused: ClassVar[tuple[str, ...]] = ()
    google_config_file: ClassVar[str | None] = None
    unseen_in_shapes: ClassVar[tuple[str, ...]] = (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_act",
        "layer_norm_eps",
    )
    token_ids: ClassVar[Mapping[str, str]] = {}
    kernels: ClassVar[ModuleType | None] = None
    segments: ClassVar[bool] = True
    shared_head: ClassVar[bool] = False
    heads: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    other_names: ClassVar[Mapping[str, str]] = {}
    price: ClassVar[str] = ""

    def includes(self, model: Model) -> bool:
        """Whether a model is one of this family."""
        return any(getattr(model, setting) for setting in self.chosen_by)

    # What the encoder computes.

    @abc.abstractmethod
    def encoder_shapes(self, model: Model, pooler: bool) -> Shapes:
        """Shapes of embeddings and layers, and with `pooler` of the pooler, in the order of the forward pass."""

    def surroundings(self, model: Model, batch: Mapping[str, Any], positions: Any = None) -> list[Any]:
        """What each layer reads beside its input, from the first layer: tensors, or a nested structure of them.

        Here it is the attention bias of layers.attention_bias. `batch`: as in encoder.encode; `positions`: int32 [rows,
        places], those of the queries; None: all positions.
        """
        bias = attention_bias(sequences_at(batch, positions), batch["sequence_ids"])
        return [bias] * model.num_hidden_layers

    def finish(self, forward: Any, x: Any) -> Any:
        """The hidden state that heads read, from the last layer's output x [n, hidden]."""
        return x

    def deviation(self, model: Model, name: str) -> float:
        """The standard deviation of a parameter's initial values."""
        return model.initializer_range

    def smaller(self, model: Model) -> Model | None:
        """A model of this family to take instead of another family's: fewer parameters, as much computation."""
        return None

    # Hugging Face's files.

    @abc.abstractmethod
    def configuration(self, model: Model) -> dict[str, Any]:
        """The content of config.json that says the sizes; the caller adds classes and token_ids."""

    @abc.abstractmethod
    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The table [model] of a recipe, from the content of config.json."""

    def name_in_file(self, name: str) -> str:
        """The name of a parameter in Hugging Face's files; names of other tensors do not change."""
        return name

    def name_of_parameter(self, name: str) -> str:
        """The parameter's name in the program for a name in Hugging Face's files: the inverse of name_in_file."""
        return name

    # Google's TF1 checkpoints, for families with a google_config_file.

    def google_scope(self, layer: int, part: str) -> str:
        """The scope of a layer's variables; `part`: a name within a layer, such as parameters.QUERY."""
        raise NotImplementedError

    def google_configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The content of google_config_file under Hugging Face's keys; another family's does not change."""
        return dict(config)
