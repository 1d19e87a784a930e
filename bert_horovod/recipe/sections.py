"""The sections of a recipe: what is trained (and must stay the same in a run) and how it is executed (and may change).

A recipe is a TOML file. One field here is one setting. `[model]`, `[data]`, `[objective]`, `[optimizer]`,
`[exchange]`, `[numerics]` and the `[[phase]]` tables say *what*: they decide the result. `[execution]` says *how*:
nothing in it changes the result beyond rounding.
"""

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Literal

from bert_horovod.recipe.fields import setting

STEP_RANGES = ("profile_steps", "timeline")  # settings of [execution] that are [first, last] or []
# How numbers may be summed over ranks, by numerics.wire; see exchange/reducer.py.
REDUCTIONS = {"float32": ("ring",), "float16": ("ring", "two_step"), "int8": ("two_step",)}
WHAT_SECTIONS = ("model", "data", "objective", "optimizer", "exchange", "numerics", "phase")


@dataclass(frozen=True)
class Model:
    """The encoder, under Hugging Face's names."""

    vocab_size: int = setting(30522, minimum=6, maximum=1 << 24)  # entries; must be the vocabulary's of the token store
    hidden_size: int = setting(768, minimum=1, maximum=1 << 16)  # width of the layers
    num_hidden_layers: int = setting(12, minimum=1, maximum=1024)  # layers of attention and feed-forward network
    num_attention_heads: int = setting(12, minimum=1)  # must divide hidden_size
    intermediate_size: int = setting(3072, minimum=1, maximum=1 << 20)  # width of the feed-forward layer
    hidden_act: str = setting(
        "gelu", choices=("gelu", "gelu_new")
    )  # exact (erf), or the tanh form that Google trained with
    hidden_dropout_prob: float = setting(0.1, minimum=0, maximum=0.9)  # applied in steps of 1/256
    attention_probs_dropout_prob: float = setting(0.1, minimum=0, maximum=0.9)  # applied in steps of 1/256
    max_position_embeddings: int = setting(512, minimum=8, maximum=1 << 20)  # the longest sequence, in tokens
    type_vocab_size: int = setting(2, minimum=1, maximum=1 << 16)  # segments that the model tells apart
    initializer_range: float = setting(0.02, above=0, maximum=100)  # standard deviation of the truncated normal
    layer_norm_eps: float = setting(1e-12, above=0, maximum=1)  # is added to the variance in LayerNorm
    # The savings of ALBERT (arXiv 1909.11942). With either the model is an ALBERT: a matrix maps embeddings to layers
    embedding_size: int = setting(0, minimum=0, maximum=1 << 16)  # width of the embeddings; 0: hidden_size
    # Layers that have parameters: 1: all layers use those of one; 2: the lower half those of one, the upper half those
    # of another; and so on. 0: each layer has its own
    shared_layers: int = setting(0, minimum=0, maximum=1024)

    @property
    def albert(self) -> bool:
        """Whether this is an ALBERT: Hugging Face has classes of its own for these."""
        return bool(self.embedding_size or self.shared_layers)

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def layer_groups(self) -> int:
        """Groups of layers that have the same parameters; num_hidden_layers where each has its own."""
        return self.shared_layers or self.num_hidden_layers


@dataclass(frozen=True)
class Data:
    """Which rows are made of the token store, and in which order."""

    seed: int = setting(
        0, minimum=0, maximum=(1 << 63) - 1
    )  # orders rows, draws masks and dropout, and the initial parameters
    packing: bool = setting(True)  # several sequences share a row, each attending only to itself


@dataclass(frozen=True)
class Objective:
    """What the model learns to predict."""

    # Half of the pairs are wrong: the second segment is another document's, or the two are swapped. none: no pairs
    pair: str = setting("next_sentence", choices=("next_sentence", "sentence_order", "none"))
    masked_fraction: float = setting(0.15, above=0, maximum=0.5)  # of the ordinary tokens of a sequence
    whole_word_masking: bool = setting(False)  # a word's pieces are masked all or none
    # The most words (without whole_word_masking: tokens) that are masked together, n of them with a probability that
    # falls as 1/n; see batches/ngrams.py. ALBERT (arXiv 1909.11942) has 3 words. 1: each is drawn on its own
    ngram: int = setting(1, minimum=1, maximum=16)
    # Of a classification: heads for Maximal Multiverse Learning, see docs/finetuning.md; 1: the plain classifier
    heads: int = setting(1, minimum=1, maximum=256)
    orthogonality: float = setting(1.0, minimum=0)  # nats of loss where all heads have the same weight vectors
    elimination: float = setting(0.005, minimum=0)  # a head whose mean loss is this share above the mean of all ends

    @property
    def pairs(self) -> bool:
        """Whether sequences are sentence pairs, so that the model has a pair head."""
        return self.pair != "none"

    @property
    def pair_name(self) -> str:
        """What the names of the pair head's metrics begin with, as in nsp_loss."""
        return "sop" if self.pair == "sentence_order" else "nsp"


@dataclass(frozen=True)
class Optimizer:
    """The update rule; `bert_horovod/optimizers/<name>.py` states it."""

    # The update rule: docs/optimizers.md says when to choose which
    name: str = setting("adamw", choices=("adamw", "lamb", "lans", "sgd", "came", "merit"))
    beta_1: float = setting(0.9, minimum=0, below=1)  # decay of the first moment
    beta_2: float = setting(0.999, minimum=0, below=1)  # decay of the second moment
    # came only: decay of the instability; published: 0.9995 to 0.99995. Runs of fewer than 20,000 steps need a smaller
    # one, such as 0.999: see optimizers/came.py
    beta_3: float = setting(0.9999, minimum=0, below=1)
    epsilon: float = setting(1e-6, above=0)  # is added to the root of the second moment
    weight_decay: float = setting(0.01, minimum=0)  # biases and LayerNorm are never decayed
    max_grad_norm: float = setting(1.0, minimum=0)  # norm to which gradients are clipped; 0: no clipping
    # global: the mean gradient, by the norm of all of it. bucket: before the sum over ranks, each bucket of each
    # micro-batch's gradient, to max_grad_norm / sqrt(buckets); execution.micro_batch and execution.bucket_bytes then
    # decide the result, and a run keeps them: see docs/optimizers.md
    clipping: str = setting("global", choices=("global", "bucket"))
    bias_correction: bool = setting(True)  # adamw only: Google's BERT has none
    adapt: str = setting("all", choices=("all", "decayed"))  # lamb only: which tensors get a trust ratio
    decay_power: float = setting(1.0, above=0)  # 1: linear decay of the learning rate (papers); 0.5: NVIDIA's


@dataclass(frozen=True)
class ExchangeMethod:
    """How ranks agree on an update; `bert_horovod/exchange/methods.py` names the file that states it."""

    method: str = setting(  # what crosses the wire
        "gradients",
        choices=(
            "gradients",
            "largest_chunks",
            "onebit_adam",
            "onebit_lamb",
            "zero_one_adam",
            "parameters",
            "mt_dao",
            "dreamddp",
        ),
    )
    # largest_chunks, onebit_adam, onebit_lamb: the share of each phase's first steps with dense gradients, in the last
    # two at least the learning rate's warm-up; published recipes have 0.15 to 0.25 (arXiv 2102.02888). zero_one_adam:
    # the share in which v still learns, where the warm-up is enough (arXiv 2202.06009). auto, not for largest_chunks:
    # until v changes little; see exchange/stages.py
    dense: float | Literal["auto"] = setting(0.2, minimum=0, maximum=1)
    # onebit_adam, onebit_lamb, zero_one_adam: what is sent: the update with a scale a tensor, the momentum with a scale
    # for every 256 numbers, or the momentum with one scale a bucket, as published; see exchange/compressed_sums.py
    form: str = setting("normalized", choices=("normalized", "momentum", "published"))
    encoding: str = setting("signs", choices=("signs", "none"))  # none: frozen v alone, to see what the signs cost
    variance_updates: int = setting(16, minimum=1)  # zero_one_adam: updates of v after which they are half as frequent
    # onebit_lamb: limits of a tensor's trust ratio; BERT-large was published with at most 0.3 (arXiv 2104.06069)
    smallest_ratio: float = setting(0.01, above=0)
    largest_ratio: float = setting(10.0, above=0)  # onebit_lamb: see smallest_ratio
    # largest_chunks: the share of chunks that is sent. GradientFlow (arXiv 1902.06855) sent 0.1 to 0.15. On a toy with
    # adamw the loss was 0.002 nats above that of all gradients with 0.2, 0.027 with 0.05
    fraction: float = setting(0.1, above=0, maximum=1)
    chunk: int = setting(
        256, minimum=16, maximum=1 << 20
    )  # largest_chunks: numbers; 256 divides the usual hidden sizes
    # gradients on the int8 wire only: each rank keeps what rounding lost, and adds it in the next step, so that over
    # steps nothing is lost (Seide et al. 2014; Tang et al. 2021, arXiv 2102.02888); 4 to 6 bytes a parameter
    error_feedback: bool = setting(True)
    # parameters, mt_dao, dreamddp: steps from one average of a parameter to the next. Each rank updates alone, so that
    # the learning rate must be tuned again: on a toy three times Adam's was best at 8 (3.260 nats against 3.234 of
    # Adam at its own best), and 4 or 32 made no difference. MT-DAO was published with 32, DreamDDP with 5 to 10.
    # zero_one_adam: steps from one sync to the next, at most, a power of two; the published recipe has 16
    interval: int = setting(1, minimum=1)
    momentum_interval: int = setting(0, minimum=0)  # mt_dao: the same of the slow momentum; 0: interval
    second_moment_interval: int = setting(0, minimum=0)  # mt_dao: the same of the second moment; 0: interval
    # mt_dao: decay and weight of the slow momentum. Published: a decay from 0.99 to 0.999, and for the second moment
    # optimizer.beta_2 = 0.9999; the weight was searched for. With 0.9 and 0.99 a toy was behind plain local adamw: tune
    slow_beta: float = setting(0.99, minimum=0, below=1)
    slow_weight: float = setting(0.9, minimum=0, maximum=1)  # mt_dao: see slow_beta
    # dreamddp: steps from one average of all at once, slots too, to the next: only there are ranks equal, so that
    # checkpoints, evaluations and comparisons lie there. Nothing hides it: it lasts as long as an average of all
    # parameters, times 1 + the optimizer's slots. A request to stop waits for the next one
    full_interval: int = setting(100, minimum=1)

    @property
    def intervals(self) -> tuple[int, int, int]:
        """mt_dao's: of parameters, slow momentum and second moment."""
        return self.interval, self.momentum_interval or self.interval, self.second_moment_interval or self.interval

    @property
    def agreement(self) -> int:
        """Steps from one after which all ranks hold equal parameters and slots to the next."""
        return {
            "parameters": self.interval,
            "zero_one_adam": self.interval,
            "mt_dao": math.lcm(*self.intervals),
            "dreamddp": self.full_interval,
        }.get(self.method, 1)


@dataclass(frozen=True)
class Numerics:
    """What trades exactness for speed."""

    precision: str = setting(
        "float32", choices=("float32", "bfloat16", "float16")
    )  # of activations; parameters stay float32
    wire: str = setting("float32", choices=("float32", "float16", "int8"))  # of gradients between ranks
    initial_loss_scale: float = setting(32768.0, minimum=1)  # float16 only
    loss_scale_growth_steps: int = setting(
        2000, minimum=1
    )  # good steps after which the loss scale doubles; float16 only
    max_skipped_steps: int = setting(
        50, minimum=1
    )  # updates skipped in a row that count as divergence, as does a loss scale that falls to 1
    loss_jump: float = setting(
        3.0, minimum=0
    )  # nats by which a step's loss, after the first 20, may exceed its moving mean, else it is divergence; 0: any
    # What divergence leads to: the end of the run, or the last checkpoint again with the rows since it passed over
    on_divergence: str = setting("stop", choices=("stop", "rollback"))


@dataclass(frozen=True)
class Phase:
    """A stretch of training at one sequence length and one depth of the model, with its own schedule."""

    sequence_length: int = setting(128, minimum=8, maximum=(1 << 16) - 1)  # tokens per row
    global_batch: int = setting(256, minimum=1, maximum=1 << 30)  # rows per optimizer step, over all ranks
    steps: int = setting(1000, minimum=1, maximum=1 << 30)  # optimizer steps
    learning_rate: float = setting(
        1e-4, above=0, maximum=1e4
    )  # peak, for the global batch; never multiplied by the world size
    warmup: float = setting(0.01, minimum=0, maximum=1)  # fraction of the steps
    hold: float = setting(0.0, minimum=0, maximum=1)  # fraction of the steps at the peak, before the decay
    # What the learning rate falls to by the phase's end, so that one falling line may go on in the next phase
    end_learning_rate: float = setting(0.0, minimum=0, maximum=1e4)
    # A model that grows, see docs/growing.md. Layers of the model in this phase; 0: model.num_hidden_layers
    num_hidden_layers: int = setting(0, minimum=0, maximum=1024)
    trained_layers: int = setting(0, minimum=0, maximum=1024)  # upper layers that train, with the heads; 0: everything
    # Where the layers that the phase before lacks come from. stack: copies of all layers, put on top of them as a
    # whole (Gong et al. 2019); top: copies of as many of the uppermost layers (Yang et al. 2020, arXiv 2011.13635)
    grow: str = setting("none", choices=("none", "stack", "top"))


GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


@dataclass(frozen=True)
class Execution:
    """How the work is done: changes speed, memory and logging, never the result beyond rounding."""

    micro_batch: int = setting(32, minimum=1)  # rows a device works on at once
    # What XLA compiles: "layers" whole layers, one program for all; "elementwise" what lies between matrix products,
    # which are left to TensorFlow's library; auto: layers on GPUs, elementwise on CPUs
    xla: str = setting("auto", choices=("auto", "layers", "elementwise", "off"))
    # What backward computes again instead of keeping it: probabilities of attention, or all of each layer
    recompute: str = setting("none", choices=("none", "attention", "layer"))
    threads: int = setting(
        0, minimum=0, maximum=4096
    )  # TensorFlow's threads per rank on CPU; 0: cores / ranks on the host
    # float32 bytes of gradients per all-reduce, at most; auto: by the measured link and backward, which may differ from
    # run to run (a resumed run keeps its buckets), and with them the rounding of sums over 3 ranks or more
    bucket_bytes: int | Literal["auto"] = setting("auto", minimum=1)
    # How the float16 wire sums over ranks: "ring", an all-reduce in float16; "two_step", an all-to-all, a float32 sum
    # of each part by one rank and an all-gather, which is faster on CPUs; auto: what a measurement finds quicker, or
    # ring where bucket_bytes is a number. float32 goes by ring and int8 in two steps.
    reduction: str = setting("auto", choices=("auto", "ring", "two_step"))
    # Bytes that Horovod may fuse into one all-reduce as they come; 0: none. Otherwise sums depend on timing, and a
    # resumed run is equal to rounding only
    fusion_bytes: int = setting(0, minimum=0)
    cycle_time_ms: float = setting(1.0, above=0)  # between Horovod's looks for tensors that are ready
    hierarchical_allreduce: bool = setting(False)  # first within hosts, then between them (NCCL only)
    autotune: bool = setting(False)  # Horovod's own search for better values of the settings above, while training
    log_steps: int = setting(10, minimum=1)  # steps between lines of metrics.jsonl
    checkpoint_steps: int = setting(1000, minimum=1)  # steps between checkpoints
    keep_checkpoints: int = setting(3, minimum=1)  # newest checkpoints that stay on disk
    keep_every_hours: float = setting(0.0, minimum=0)  # beside them one checkpoint every so many hours; 0: none
    max_unsaved_hours: float = setting(6.0, above=0)  # without a checkpoint, as on a full disk, until the run stops
    consistency_steps: int = setting(100, minimum=0)  # steps between comparisons of the state over ranks; 0: none
    stall_s: float = setting(600.0, above=0)  # longest time for one thing (a step, a save), then the run ends
    evaluate_steps: int = setting(1000, minimum=0)  # steps between evaluations on held-out rows; 0: at the end only
    evaluate_rows: int = setting(1024, minimum=1)  # held-out rows per evaluation, at most
    # Task of GLUE on which a copy of the parameters is fine-tuned shortly after each evaluation, its scores in
    # metrics.jsonl; pretrain needs --probe_dir then
    probe: str = setting("", choices=("", *GLUE_TASKS))
    tensorboard: bool = setting(True)  # write the metrics to output_dir/tensorboard too
    profile_steps: tuple[int, ...] = setting(())  # [first, last] step traced to output_dir/tensorboard; []: none
    timeline: tuple[int, ...] = setting(())  # [first, last] step whose all-reduces go to output_dir/timeline; []: none


@dataclass(frozen=True)
class Recipe:
    """All settings of a run."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    objective: Objective = field(default_factory=Objective)
    optimizer: Optimizer = field(default_factory=Optimizer)
    exchange: ExchangeMethod = field(default_factory=ExchangeMethod)
    numerics: Numerics = field(default_factory=Numerics)
    phase: tuple[Phase, ...] = (Phase(),)
    execution: Execution = field(default_factory=Execution)

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
        """The number of the phase that does optimizer step `step` of the run, counted from 1.

        Phase 0 for step 0, and the last phase beyond the last step.
        """
        ends = itertools.accumulate(phase.steps for phase in self.phase)
        return min(sum(end < step for end in ends), len(self.phase) - 1)

    def in_phase(self, phase: Phase) -> "Recipe":
        """The recipe with the model as deep as it is in one of its phases."""
        layers = phase.num_hidden_layers or self.model.num_hidden_layers
        if layers == self.model.num_hidden_layers:
            return self
        return replace(self, model=replace(self.model, num_hidden_layers=layers))

    def of_phase(self, number: int) -> "Recipe":
        """A recipe of one of the phases alone, with the model as deep as it is in it."""
        phase = self.phase[number]
        return replace(self.in_phase(phase), phase=(replace(phase, grow="none"),))
