"""The sections of a recipe, and what the model and the methods of optimizer and exchange answer.

A recipe is a TOML file. One field here or in settings.py is one setting. `[model]`, `[data]`, `[objective]`,
`[optimizer]`, `[exchange]`, `[numerics]` and the `[[phase]]` tables say *what* is trained: they decide the result.
`[execution]` says *how* it is trained: its settings do not change the result beyond rounding, unless optimizer.clipping
is "bucket".
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import ReadIf, named, setting
from bert_horovod.recipe.finetuning_heads import Head
from bert_horovod.recipe.settings import Card, Data, Execution, Numerics, Objective, Phase

Shape = tuple[int, ...]
# Ways to sum numbers over ranks (execution.reduction) for each numerics.wire; see exchange/dense/reducer.py.
REDUCTIONS = {"float32": ("ring",), "float16": ("ring", "two_step"), "int8": ("two_step",)}
_MOMENTS = ReadIf("a rule with moments, which 'sgd' has not", lambda recipe: bool(recipe.optimizer.slots))
_CLIPS = ReadIf("a rule that clips, which 'lans' does not", lambda recipe: recipe.optimizer.rule.clips)
WHAT_SECTIONS = ("model", "data", "objective", "finetuning", "optimizer", "exchange", "numerics", "phase")


@dataclass(frozen=True)
class Model:
    """BERT and ALBERT: the encoder's sizes, under Hugging Face's names.

    An architecture with other settings is a subclass; bert_horovod/model/architectures/families.py lists them.
    """

    architecture: str = named("bert")  # what the layers compute
    vocab_size: int = setting(30522, minimum=6, maximum=1 << 24)  # tokens; must equal the token store's vocabulary
    hidden_size: int = setting(768, minimum=1, maximum=1 << 16)  # width of the layers
    num_hidden_layers: int = setting(12, minimum=1, maximum=1024)  # layers of attention and feed-forward network
    num_attention_heads: int = setting(12, minimum=1)  # heads per layer; must divide hidden_size
    intermediate_size: int = setting(3072, minimum=1, maximum=1 << 20)  # width of the feed-forward layer
    # gelu: exact (erf); gelu_new: the tanh form that Google trained with
    hidden_act: str = setting("gelu", choices=("gelu", "gelu_new"))
    hidden_dropout_prob: float = setting(0.1, minimum=0, maximum=0.9)  # probability, in steps of 1/256
    attention_probs_dropout_prob: float = setting(0.1, minimum=0, maximum=0.9)  # probability, in steps of 1/256
    max_position_embeddings: int = setting(512, minimum=8, maximum=1 << 20)  # the longest sequence, in tokens
    type_vocab_size: int = setting(2, minimum=1, maximum=1 << 16)  # number of segment types
    initializer_range: float = setting(0.02, above=0, maximum=100)  # standard deviation of the truncated normal
    layer_norm_eps: float = setting(1e-12, above=0, maximum=1)  # added to the variance in LayerNorm
    # Width of the embeddings; 0: hidden_size. If this setting or shared_layers is not 0, the model is an ALBERT (arXiv
    # 1909.11942), which has fewer parameters: a matrix maps its embeddings to the width of the layers
    embedding_size: int = setting(0, minimum=0, maximum=1 << 16)
    # Number of different sets of layer parameters. 1: all layers share one set; 2: the lower half of the layers shares
    # one set, the upper half another; and so on. 0: each layer has its own parameters
    shared_layers: int = setting(0, minimum=0, maximum=1024)

    # The id that the token of padding must have, because positions are counted from it; None: any
    padding_id: ClassVar[int | None] = None

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def layer_groups(self) -> int:
        """Number of groups of layers that share parameters; num_hidden_layers if each layer has its own."""
        return self.shared_layers or self.num_hidden_layers

    def in_phase(self, phase: "Phase") -> "Model":
        """The model in a phase: with the depth that it has there."""
        layers = phase.num_hidden_layers or self.num_hidden_layers
        return self if layers == self.num_hidden_layers else replace(self, num_hidden_layers=layers)

    @property
    def head_act(self) -> str:
        """The activation of the layer before the masked-token head's output matrix."""
        return self.hidden_act

    def score_blocks(self, layer: int, length: int) -> tuple[int, int, int]:
        """Blocks in which a layer computes a head's scores in a row of `length`; queries and keys of each block."""
        return 1, length, length

    def check(self, recipe: "Recipe") -> None:
        """Raise UserError if the recipe does not fit the architecture."""
        for i, phase in enumerate(recipe.phase):
            if phase.global_rope_theta:
                raise UserError(
                    f"phase.{i}.global_rope_theta = {phase.global_rope_theta:g}: model.architecture = "
                    f"{self.architecture!r} has no rotary positions; expected 0, or model.architecture = 'modernbert'"
                )


@dataclass(frozen=True)
class Optimizer:
    """The update rule: the settings that most rules read; docs/optimizers.md helps to choose one.

    A rule is a subclass with its name, its slots, and the settings that it alone reads, in the file of its formula;
    bert_horovod/optimizers/rules.py finds them.
    """

    name: str = named("")  # the update rule
    beta_1: float = setting(
        0.9,
        minimum=0,
        below=1,
        read_if=ReadIf(
            "a rule with a first moment of its own, which 'sgd' and some exchanges have not",
            lambda recipe: bool(recipe.optimizer.slots) and "beta_1" not in recipe.exchange.without,
        ),
    )  # decay of the first moment
    beta_2: float = setting(0.999, minimum=0, below=1, read_if=_MOMENTS)  # decay of the second moment
    epsilon: float = setting(1e-6, above=0, read_if=_MOMENTS)  # added to the square root of the second moment
    weight_decay: float = setting(0.01, minimum=0)  # biases and LayerNorm are never decayed
    max_grad_norm: float = setting(
        1.0, minimum=0, read_if=_CLIPS
    )  # L2 norm to which gradients are clipped; 0: no clipping
    # global: clip the mean gradient by the norm of the whole gradient. bucket: before the sum over ranks, clip each
    # bucket of each micro-batch's gradient to max_grad_norm / sqrt(number of buckets); execution.micro_batch and
    # execution.bucket_bytes then change the result, so a run must keep them: see docs/optimizers.md
    clipping: str = setting(
        "global",
        choices=("global", "bucket"),
        read_if=ReadIf(
            "optimizer.max_grad_norm above 0 and a rule that clips",
            lambda recipe: recipe.optimizer.max_grad_norm > 0 and recipe.optimizer.rule.clips,
        ),
    )

    rule: ClassVar[Any]  # its arithmetic: optimizers.base.Rule
    slots: ClassVar[tuple[str, ...]] = ()  # names of its state per tensor; a slot starts as zeros
    multiplies: ClassVar[bool] = False  # whether it multiplies matrices, whose dtype ranks agree on

    def rule_in(self, products: str) -> Any:
        """The rule with its matrix products in the dtype that ranks agreed on."""
        return self.rule

    def slot_shape(self, slot: str, name: str, shape: Shape) -> Shape | None:
        """The shape of a slot for a parameter of this name and shape; None: such a parameter has no such slot."""
        return shape

    def batched(self, name: str, shape: Shape) -> bool:
        """Whether this parameter is updated in one batch with others of its shape, because the rule multiplies them."""
        return False

    def flops(self, shapes: dict[str, Shape]) -> float:
        """Floating-point operations of the matrix products of one update; `shapes`: of the parameters that train."""
        return 0.0

    def check(self, recipe: "Recipe") -> None:
        """Raise UserError if the rule does not fit the recipe."""


class Stage(NamedTuple):
    """Steps of a phase in which ranks send the same; values are per step, on average. costs/exchanges.py counts."""

    name: str
    share: float  # of the phase's steps
    wire: str  # of all sums: a key of costs.exchanges.NUMBER_BYTES
    reduction: str  # way to sum `during_backward` and `after`: a key of costs.exchanges.LINKS
    during_backward: bool = True  # whether all parameters' numbers, or a fraction of them, are summed during backward
    fraction: float = 1.0  # share of the numbers that is sent during backward
    chunk: int = 0  # numbers of a chunk, whose norm is sent too; 0: no norms are sent
    meanwhile: float = 0.0  # sums over all parameters' numbers during the whole step: less than one
    after: float = 0.0  # sums over all parameters' numbers after the step, which nothing hides: how many
    # Numbers that are summed during backward, by parameter; None: all of them, or their fraction
    sent: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ExchangeMethod:
    """How ranks agree on an update: the data that they send to each other; docs/exchange.md describes the methods.

    A method is a subclass in the file of its code: it has the method's settings, and answers what
    plans, checks and the run ask about it. bert_horovod/exchange/methods.py finds them. The defaults below are those of
    a method that changes each update and sends buckets during backward.
    """

    method: str = named("")  # the data that ranks send to each other

    optimizer: ClassVar[str] = ""  # optimizer.name for which it is made; "": any
    without: ClassVar[tuple[str, ...]] = ()  # settings of the optimizer that its update rule does not read
    why_optimizer: ClassVar[str] = ""  # the reason if that is not any: what the method does
    wires: ClassVar[tuple[str, ...]] = ("float32", "float16", "int8")  # values of numerics.wire that fit
    why_wires: ClassVar[str] = ""  # the reason if some do not: what it does with the numbers
    intervals: ClassVar[tuple[str, ...]] = ()  # names of the settings that make `agreement`
    slots: ClassVar[tuple[str, ...]] = ()  # names of further slots, equal on all ranks
    overlaps: ClassVar[bool] = True  # buckets are sent during backward, and cut by the measured link and backward
    clips_buckets: ClassVar[bool] = False  # whether optimizer.clipping = "bucket" fits
    grows: ClassVar[bool] = False  # whether tensors may come, or begin to train, in a later phase
    in_place: ClassVar[bool] = False  # whether compiled updates need no second copy of a group of parameters
    for_one_rank: ClassVar[bool] = False  # whether it has a use with one rank
    # Whether each rank trains a copy of its own of parameters and optimizer slots, which only it keeps; the parameters
    # that are compared, evaluated and saved are then those on which ranks agreed last
    trains_copies: ClassVar[bool] = False
    price: ClassVar[str] = ""  # its disadvantage for learning, for plans; "": plans do not offer it
    code: ClassVar[type]  # the class that exchanges, a subclass of exchange.base.Exchange

    def stages(self, recipe: "Recipe", phase: "Phase", shapes: dict[str, Shape], reduction: str) -> list[Stage]:
        """What ranks send in a phase of a checked recipe; the shares sum to 1, and some may have no step.

        `shapes`: of the parameters, by name; `reduction`: the way to sum gradients.
        """
        raise NotImplementedError

    def slot_shape(self, slot: str, name: str, shape: Shape) -> Shape | None:
        """The shape of a further slot for a parameter of this name and shape; None: it has no such slot."""
        return shape

    @property
    def agreement(self) -> int:
        """Steps after which all ranks again hold equal parameters and slots; 1: they do after each step."""
        return 1

    @property
    def cycle(self) -> int:
        """Steps after which ranks send the same again, within a stage."""
        return self.agreement

    def kept_numbers(self, recipe: "Recipe", shapes: dict[str, Shape]) -> float:
        """Float32 numbers that each of several ranks keeps beside parameters and slots; `shapes`: of the parameters."""
        return 0.0

    def check(self, recipe: "Recipe") -> None:
        """Raise UserError if the settings do not fit each other or the recipe; recipe/checking.py checks the above."""

    def sends_less(self, recipe: "Recipe") -> str:
        """The setting by which ranks send less than float16 gradients and learn less; "": none, or not to be judged."""
        return f"exchange.method = {self.method!r}"

    def rows_alone(self, recipe: "Recipe") -> bool:
        """Whether the sparse embedding gradient may be sent apart from the dense gradients."""
        return False

    def sums_by_host(self, reductions: tuple[str, ...]) -> bool:
        """Whether ranks of one host sum first: yes if the numbers that leave it are encoded; see costs/exchanges.py."""
        return False

    def may_sum_in_two_steps(self, reductions: tuple[str, ...]) -> bool:
        """Whether exchange/two_step.py may sum; `reductions`: the ways to sum that the recipe allows."""
        return self.sums_by_host(reductions)

    @classmethod
    def offered(cls, recipe: "Recipe", steps: int) -> "Recipe | None":
        """The recipe with this method in place of gradients, for a plan's choices; None: it does not fit.

        `steps`: wished steps from one average to the next; a method without such averages ignores it.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a run. Methods have no default here: recipe_files/loading.py knows them all."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    objective: Objective = field(default_factory=Objective)
    finetuning: Head
    optimizer: Optimizer
    exchange: ExchangeMethod
    numerics: Numerics = field(default_factory=Numerics)
    phase: tuple[Phase, ...] = (Phase(),)
    execution: Execution = field(default_factory=Execution)
    card: Card = field(default_factory=Card)
    notes: tuple[str, ...] = field(default=(), compare=False)  # no setting: what recipe_files/loading.py has to say

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phase)

    @property
    def whole(self) -> bool:
        """Whether the whole model trains in every phase."""
        layers = self.model.num_hidden_layers
        return all({phase.num_hidden_layers, phase.trained_layers} <= {0, layers} for phase in self.phase)

    def phase_at(self, step: int) -> int:
        """The number, from 0, of the phase that contains optimizer step `step` of the run; steps count from 1.

        Step 0 belongs to phase 0, and steps beyond the last one to the last phase.
        """
        ends = itertools.accumulate(phase.steps for phase in self.phase)
        return min(sum(end < step for end in ends), len(self.phase) - 1)

    def positions(self, step: int) -> int:
        """The positions of the rows of all steps up to `step`, padding included."""
        positions, begin = 0, 0
        for phase in self.phase:
            steps = min(max(step - begin, 0), phase.steps)
            positions += steps * phase.global_batch * phase.sequence_length
            begin += phase.steps
        return positions

    def in_phase(self, phase: Phase) -> "Recipe":
        """The recipe with the model as it is in one of its phases."""
        model = self.model.in_phase(phase)
        return self if model is self.model else replace(self, model=model)

    def of_phase(self, number: int) -> "Recipe":
        """A recipe that consists of one phase alone, with the model's depth in that phase."""
        phase = self.phase[number]
        return replace(self.in_phase(phase), phase=(replace(phase, grow="none"),))


def reductions(recipe: Recipe) -> tuple[str, ...]:
    """The ways to sum over ranks that the recipe allows: a measurement chooses one; without measurement, the first."""
    settings = recipe.execution
    if settings.reduction != "auto":
        return (settings.reduction,)
    possible = REDUCTIONS[recipe.numerics.wire]
    return possible if settings.bucket_bytes == "auto" else possible[:1]


def sums_by_host(recipe: Recipe) -> bool:
    """Whether ranks of one host sum among themselves first: yes if the numbers that leave the host are encoded."""
    return recipe.exchange.sums_by_host(reductions(recipe))


def may_sum_in_two_steps(recipe: Recipe) -> bool:
    """Whether exchange/two_step.py may sum: it encodes, or a measurement may prefer it to the ring."""
    return recipe.exchange.may_sum_in_two_steps(reductions(recipe))
