"""The settings of a RoBERTa."""

from dataclasses import dataclass
from typing import ClassVar

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import fixed, named, setting
from bert_horovod.recipe.sections import Model, Recipe

PADDING_ID = 1  # in all published models
UNUSED_POSITIONS = PADDING_ID + 1  # rows of the table of positions before that of a text's first token


@dataclass(frozen=True)
class RobertaModel(Model):
    """RoBERTa (Liu et al. 2019, arXiv 1907.11692) and XLM-R: a BERT without segment types and sentence pairs."""

    architecture: str = named("roberta")
    vocab_size: int = setting(50265, minimum=6, maximum=1 << 24)  # tokens; must equal the token store's vocabulary
    type_vocab_size: int = fixed(1)
    layer_norm_eps: float = setting(1e-5, above=0, maximum=1)  # added to the variance in LayerNorm
    embedding_size: int = fixed(0)
    shared_layers: int = fixed(0)

    padding_id: ClassVar[int | None] = PADDING_ID

    @property
    def head_act(self) -> str:
        """See `Model`; transformers has the exact gelu there, whatever hidden_act says."""
        return "gelu"

    def check(self, recipe: Recipe) -> None:
        """See `Model`."""
        super().check(recipe)
        if recipe.objective.pairs:
            raise UserError(
                f"objective.pair = {recipe.objective.pair!r}: a RoBERTa has no segment types and no sentence-pair "
                "head; expected 'none'"
            )
