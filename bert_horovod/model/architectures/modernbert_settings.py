"""The settings of a ModernBERT, and what follows from them: where layers attend, and in which blocks."""

from dataclasses import dataclass, replace

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import fixed, named, setting
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import Phase

# Rows at least so many times as long as the keys of a block are computed in blocks; else one product is faster.
_WORTH = 2


@dataclass(frozen=True)
class ModernBertModel(Model):
    """ModernBERT (Warner et al. 2024, arXiv 2412.13663): LayerNorm first, rotary positions, gates, sliding windows."""

    architecture: str = named("modernbert")
    hidden_act: str = fixed("gelu")
    hidden_dropout_prob: float = fixed(0.0)
    attention_probs_dropout_prob: float = fixed(0.0)
    max_position_embeddings: int = setting(8192, minimum=8, maximum=1 << 20)  # the longest sequence, in tokens
    type_vocab_size: int = fixed(1)
    layer_norm_eps: float = setting(1e-5, above=0, maximum=1)  # added to the variance in LayerNorm
    embedding_size: int = fixed(0)
    shared_layers: int = fixed(0)
    # Dropout of the attention's output, in training alone; in steps of 1/256. config.json says 0, because transformers'
    # attention_dropout would drop probabilities too
    attention_output_dropout_prob: float = setting(0.1, minimum=0, maximum=0.9)
    # Layers 0, n, 2n, ... attend to the whole sequence, the others within local_attention. 1: all layers do
    global_attn_every_n_layers: int = setting(3, minimum=1, maximum=1024)
    # Tokens of a sliding window: a token attends to those at most half as many places away
    local_attention: int = setting(128, minimum=2, maximum=1 << 20)
    # Base of the rotary frequencies in layers that attend to the whole sequence. The published models have 10,000 at
    # length 1,024 and 160,000 from then on
    global_rope_theta: float = setting(160000.0, above=1, maximum=1e8)
    local_rope_theta: float = setting(10000.0, above=1, maximum=1e8)  # the same in layers with a sliding window
    # What a classifier of texts reads: the mean of a text's positions, or [CLS]
    classifier_pooling: str = setting("mean", choices=("mean", "cls"))

    @property
    def reach(self) -> int:
        """Places on each side to which a layer with a sliding window attends."""
        return self.local_attention // 2

    def attends_fully(self, layer: int) -> bool:
        """Whether a layer, from 0, attends to the whole sequence."""
        return layer % self.global_attn_every_n_layers == 0

    def theta(self, layer: int) -> float:
        """The base of a layer's rotary frequencies."""
        return self.global_rope_theta if self.attends_fully(layer) else self.local_rope_theta

    def blocks(self, length: int) -> int:
        """Blocks of `reach` queries in which a sliding window is computed in rows of this length.

        Each block reads the keys of itself and of its two neighbours. 1: the whole row is one product.
        """
        return -(-length // self.reach) if length >= _WORTH * 3 * self.reach else 1

    def in_phase(self, phase: Phase) -> Model:
        """See `Model`; a phase may have a theta of its own."""
        model = super().in_phase(phase)
        return replace(model, global_rope_theta=phase.global_rope_theta) if phase.global_rope_theta else model

    def score_blocks(self, layer: int, length: int) -> tuple[int, int, int]:
        """See `Model`."""
        blocks = 1 if self.attends_fully(layer) else self.blocks(length)
        return (blocks, self.reach, 3 * self.reach) if blocks > 1 else (1, length, length)

    def check(self, recipe: Recipe) -> None:
        """See `Model`."""
        if self.hidden_size // self.num_attention_heads % 2:
            raise UserError(
                f"model.num_attention_heads = {self.num_attention_heads}: its heads of "
                f"{self.hidden_size // self.num_attention_heads} numbers cannot be turned in pairs (rotary positions); "
                "expected an even number"
            )
        rate = self.attention_output_dropout_prob
        if rate and not round(rate * 256):
            raise UserError(
                f"model.attention_output_dropout_prob = {rate}: expected 0, or more than 1/512: dropout is applied in "
                "steps of 1/256, so that this rate would be none"
            )
        if recipe.objective.pairs:
            raise UserError(
                f"objective.pair = {recipe.objective.pair!r}: a ModernBERT has no segment types and no sentence-pair "
                "head; expected 'none'"
            )
        if not recipe.whole:
            raise UserError(
                "model.architecture = 'modernbert': its layers are not alike (the first has no LayerNorm before "
                "attention, and sliding windows take turns with full attention), so that a copy in another place would "
                "compute something else; expected no phase.N.num_hidden_layers and no trained_layers"
            )
        for i, phase in enumerate(recipe.phase):
            if phase.global_rope_theta and phase.global_rope_theta <= 1:
                raise UserError(
                    f"phase.{i}.global_rope_theta = {phase.global_rope_theta:g}: expected more than 1, or 0 for "
                    "model.global_rope_theta"
                )
