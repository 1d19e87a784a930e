"""Settings of what is trained and of how it is done, beside the model's and those of methods, which sections.py has."""

from dataclasses import dataclass
from typing import Literal

from bert_horovod.recipe.fields import Numbers, ReadIf, setting

# What is trained, as messages say it; ReadIf.tasks names some of them.
PRETRAINING, CLASSIFICATION, REGRESSION = "pre-training", "a classification", "a regression"
MULTILABEL, SPANS, ENTITIES = "a multilabel classification", "question answering", "entity recognition"
EMBEDDING = "an embedding"
_MASKS = ReadIf("pre-training", tasks=(PRETRAINING,))
_OWN_RATE = ReadIf(
    "a phase without masked_fraction, or objective.held_out_masked_fraction = 0",
    lambda recipe: (
        not recipe.objective.held_out_masked_fraction or not all(phase.masked_fraction for phase in recipe.phase)
    ),
    tasks=(PRETRAINING,),
)
_MIXED = ReadIf(
    "a phase without mixture",
    lambda recipe: any(not phase.mixture for phase in recipe.phase),
    tasks=(PRETRAINING,),
)
_BY_SIZE = ReadIf(
    "a phase whose mixture is 'size'",
    lambda recipe: any((phase.mixture or recipe.data.mixture) == "size" for phase in recipe.phase),
    tasks=(PRETRAINING,),
)
_DECAYS = ReadIf("a decay: phase.N.warmup + hold below 1", lambda recipe: recipe.phase[0].decays)


@dataclass(frozen=True)
class Data:
    """The rows that are made from the token store, and their order."""

    # Random seed of the row order, masks, dropout and initial parameters
    seed: int = setting(0, minimum=0, maximum=(1 << 63) - 1)
    packing: bool = setting(
        True,
        read_if=ReadIf("finetuning.head other than 'label_attention'", lambda recipe: not recipe.finetuning.windows),
    )  # several sequences share a row; each attends only to itself
    # With several token stores, the share of tokens that each has in training, by its name, as in
    # {general = 0.7, own = 0.3}; the numbers are divided by their sum. size: each as many as it holds
    mixture: Numbers | Literal["size"] = setting("size", read_if=_MIXED)
    # With mixture = "size" shares are those of the stores' tokens to this power, divided by their sum: below 1 small
    # stores, such as rare languages, are read more often; 0: all alike
    mixture_temperature: float = setting(1.0, minimum=0, maximum=1, read_if=_BY_SIZE)


@dataclass(frozen=True)
class Objective:
    """The objective of pre-training: masked tokens and sentence pairs."""

    # Half of the sentence pairs are wrong, and the model learns to detect them. next_sentence: in a wrong pair the
    # second segment is from another document; sentence_order: the two segments are swapped; none: no pairs
    pair: str = setting("next_sentence", choices=("next_sentence", "sentence_order", "none"), read_if=_MASKS)
    # Fraction of a sequence's ordinary tokens, where phase.N.masked_fraction gives no other
    masked_fraction: float = setting(0.15, above=0, maximum=0.5, read_if=_OWN_RATE)
    # The same on held-out rows, so that losses of recipes with other fractions compare; 0: masked_fraction
    held_out_masked_fraction: float = setting(0.0, minimum=0, maximum=0.5, read_if=_MASKS)
    # drawn: each epoch draws masks anew; disjoint: over a phase's epochs each token of a sequence is predicted once
    # before any is predicted twice, for a corpus that is read several times; where phase.N.masked_fraction_end lets
    # the fraction fall, 6 % are passed over in the first circle, 13 % predicted twice. Held-out rows are always drawn
    masks: str = setting("drawn", choices=("drawn", "disjoint"), read_if=_MASKS)
    whole_word_masking: bool = setting(False, read_if=_MASKS)  # mask all pieces of a word or none
    # Longest n-gram that is masked together, in words (without whole_word_masking: in tokens). The probability of
    # length n is proportional to 1/n; see batches/words.py. ALBERT (arXiv 1909.11942) uses 3. 1: single words
    ngram: int = setting(1, minimum=1, maximum=16, read_if=_MASKS)
    # File of words, one a line, that are always candidates: in each sequence they are masked before all others, as long
    # as masked_fraction allows, for example the terms of a domain. "": none
    priority_words: str = setting("", read_if=_MASKS)

    @property
    def pairs(self) -> bool:
        """Whether sequences are sentence pairs, so that the model has a pair head."""
        return self.pair != "none"

    @property
    def pair_name(self) -> str:
        """Prefix of the names of the pair head's metrics, as in nsp_loss."""
        return "sop" if self.pair == "sentence_order" else "nsp"


@dataclass(frozen=True)
class Numerics:
    """Number formats that trade exactness for speed, and the response to divergence."""

    # Dtype of activations; parameters stay float32
    precision: str = setting("float32", choices=("float32", "bfloat16", "float16"))
    wire: str = setting("float32", choices=("float32", "float16", "int8"))  # dtype of gradients sent between ranks
    # Nats. After the first 20 updates a loss that exceeds the moving mean of losses by more for 10 steps, or at the
    # run's end, counts as divergence; 0: no limit
    loss_jump: float = setting(3.0, minimum=0)
    # Response to divergence. stop: the run ends; rollback: it goes back to the last checkpoint and skips the rows of
    # the steps since then
    on_divergence: str = setting("stop", choices=("stop", "rollback"))


@dataclass(frozen=True)
class Phase:
    """A part of training with one sequence length, one depth of the model and its own learning-rate schedule."""

    sequence_length: int = setting(128, minimum=8, maximum=(1 << 16) - 1)  # tokens per row
    global_batch: int = setting(256, minimum=1, maximum=1 << 30)  # rows per optimizer step, over all ranks
    steps: int = setting(1000, minimum=1, maximum=1 << 30)  # optimizer steps
    # Peak, for the global batch; never multiplied by the world size
    learning_rate: float = setting(1e-4, above=0, maximum=1e4)
    warmup: float = setting(0.01, minimum=0, maximum=1)  # fraction of the steps, before the peak
    hold: float = setting(0.0, minimum=0, maximum=1)  # fraction of the steps at the peak, before the decay
    # Form of the decay, after warm-up and hold. power: linear, or as decay_power says; one_minus_sqrt: 1 - sqrt of the
    # decay's share that is over, which falls fast first (Hägele et al. 2024, arXiv 2405.18392); cosine: half a wave
    decay: str = setting("power", choices=("power", "one_minus_sqrt", "cosine"), read_if=_DECAYS)
    # Power of the decay. 1: linear, as in the papers; 0.5: as in NVIDIA's code
    decay_power: float = setting(
        1.0,
        above=0,
        read_if=ReadIf(
            "decay = 'power' in a phase whose warmup + hold is below 1",
            lambda recipe: recipe.phase[0].decay == "power" and recipe.phase[0].decays,
        ),
    )
    # Learning rate at the phase's end; above 0, the next phase can continue the same decay
    end_learning_rate: float = setting(0.0, minimum=0, maximum=1e4, read_if=_DECAYS)
    # Fraction of tokens that is masked at the phase's first step; 0: objective.masked_fraction
    masked_fraction: float = setting(0.0, minimum=0, maximum=0.5, read_if=_MASKS)
    # The same at its end, linear in the steps between; a lower one makes faster steps; 0: as at the first step
    masked_fraction_end: float = setting(0.0, minimum=0, maximum=0.5, read_if=_MASKS)
    # data.mixture in this phase: a table, or size; "": as there. 0 leaves a store out
    mixture: Numbers | Literal["size", ""] = setting("", read_if=_MASKS)
    # Layers of the model in this phase, for a model that grows (docs/growing.md); 0: model.num_hidden_layers
    num_hidden_layers: int = setting(0, minimum=0, maximum=1024)
    # Number of upper layers that train, together with the heads; the other layers do not change; 0: everything trains
    trained_layers: int = setting(0, minimum=0, maximum=1024)
    # How a phase with more layers than the phase before gets its new layers. stack: copies of all layers, placed on top
    # of them as a whole (Gong et al. 2019); top: copies of the uppermost layers, as many as are needed (Yang et al.
    # 2020, arXiv 2011.13635; experimental); none: no new layers
    grow: str = setting("none", choices=("none", "stack", "top"))
    # model.global_rope_theta in this phase, for longer rows; 0: the model's
    global_rope_theta: float = setting(0.0, minimum=0, maximum=1e8)

    @property
    def decays(self) -> bool:
        """Whether steps are left for a decay."""
        return self.warmup + self.hold < 1


GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


@dataclass(frozen=True)
class Execution:
    """How the work is done: speed, memory and logging; the result changes by rounding only (but see clipping)."""

    micro_batch: int = setting(32, minimum=1)  # rows that a device processes at once
    # Part of the model that XLA compiles. layers: whole layers, with one program for all of them; elementwise: the
    # operations between matrix products (TensorFlow's library computes the products); off: nothing; auto: layers on
    # GPUs, elementwise on CPUs
    xla: str = setting("auto", choices=("auto", "layers", "elementwise", "off"))
    # How GPUs compute the operations between matrix products of compiled layers. triton: with the kernels of
    # bert_horovod/model/gpu_kernels, which are faster and keep less for backward; xla: with what XLA makes; auto:
    # triton where it can be used (docs/gpu.md), else xla
    kernels: str = setting("auto", choices=("auto", "xla", "triton"))
    # Values that backward computes again, to save the memory for them. attention: the attention probabilities (the
    # kernels never keep these); layer: all values of each layer
    recompute: str = setting("none", choices=("none", "attention", "layer"))
    # TensorFlow's threads per rank on CPU; 0: cores / ranks on the host
    threads: int = setting(0, minimum=0, maximum=4096)
    # Most bytes of gradients, counted as float32, in one all-reduce (bucket). auto: chosen from the measured speed of
    # link and backward; buckets may then differ from run to run (a resumed run keeps its own), and so does the rounding
    # of sums over 3 ranks or more
    bucket_bytes: int | Literal["auto"] = setting("auto", minimum=1)
    # How the float16 wire sums over ranks. ring: an all-reduce in float16; two_step: an all-to-all, a float32 sum of
    # each part by one rank and an all-gather, which is faster on CPUs; auto: the faster one in a measurement, or ring
    # if bucket_bytes is a number. The float32 wire always uses ring, the int8 wire two_step
    reduction: str = setting("auto", choices=("auto", "ring", "two_step"))
    log_steps: int = setting(10, minimum=1)  # steps between lines of metrics.jsonl
    checkpoint_steps: int = setting(1000, minimum=1)  # steps between checkpoints
    keep_checkpoints: int = setting(3, minimum=1)  # number of newest checkpoints that stay on disk
    # A URL, as in "s3://bucket/runs/a", or a directory on another disk, to which each checkpoint is copied too; a start
    # whose output_dir has no newer one goes on from there: docs/checkpoints.md. "": none
    mirror: str = setting("")
    consistency_steps: int = setting(100, minimum=0)  # steps between comparisons of the state over ranks; 0: none
    # Steps between checks of gradients: each rank computes a micro-batch of another rank once more (one rank alone: its
    # own) and compares checksums; also before each checkpoint; 0: none. Finds a device that computes wrongly
    replay_steps: int = setting(500, minimum=0)
    stall_s: float = setting(600.0, above=0)  # seconds; the run ends if one action (a step, a save) takes longer
    evaluate_steps: int = setting(1000, minimum=0)  # steps between evaluations on held-out rows; 0: at phase ends only
    evaluate_rows: int = setting(1024, minimum=1, read_if=_MASKS)  # held-out rows per evaluation, at most
    # GLUE task, or ner: after each evaluation a copy of the parameters is fine-tuned on it for a short time, and its
    # scores go to metrics.jsonl; or pairs: the model is judged by minimal pairs. pretrain then needs --probe_dir
    probe: str = setting("", choices=("", *GLUE_TASKS, "ner", "pairs"), read_if=_MASKS)
    # What gets metrics and scores too: files in output_dir/tensorboard, and experiment trackers, which are packages of
    # the extras of the same names, get settings too and are configured by their own environment variables, such as
    # WANDB_MODE and MLFLOW_TRACKING_URI: docs/report.md
    trackers: tuple[str, ...] = setting(("tensorboard",), choices=("tensorboard", "wandb", "mlflow"))


@dataclass(frozen=True)
class Card:
    """What the model card (README.md of each checkpoint) says and a run cannot know; it changes nothing else."""

    language: tuple[str, ...] = setting(())  # codes of the text's languages, as in ["en", "de"]; []: not said
    license: str = setting("")  # the model's, by its name on the Hugging Face Hub, as in "apache-2.0"; "": not said
