"""The texts in ir/: which kernel, compiled for which tile, serves which shape. Needs neither TensorFlow nor Triton.

Lengths, numbers of heads, widths and dropout's threshold are run-time values; a text fixes only the sizes of tiles, the
head size, and whether there is dropout. Capabilities 8.6, 8.9 and 12 have 99 KiB of shared memory a block, others from
8.0 on at least 163 KiB; tests/model/gpu_kernels/shared_memory.json has what each text needs.
"""

import functools
import itertools
from importlib import resources
from typing import NamedTuple

HEAD_SIZES = (32, 64)
ROTARY_HEAD_SIZES = (32, 64, 128)
BLOCK = 64  # positions; divides every length that the attention kernels take
WHOLE_LENGTH = 128  # one program computes a whole row's head
NORM_COLUMNS = (256, 512, 1024, 2048, 4096)  # widths up to these
NORM_ROWS = 16  # a program of norm_backward
GELU_ROWS, GELU_COLUMNS, GELU_TURNS = 32, 128, 16
GEGLU_ROWS, GEGLU_COLUMNS = 64, 32
TABLE_COLUMNS = (128, 256)
CAPABILITIES = (9, 0), (8, 0), (8, 9)  # they stand for all

_QKV = {"qkv": "*bf16", "biases": "*bf16", "sequences": "*i32"}
_REACH = {"reach": "*i32"}
_STREAM = {"key": "*i64", "first_row": "*i64", "site": "*i64", "sizes": "*i32", "numbers": "*fp32"}
_CONTEXT = {"context": "*bf16", "normalizer": "*fp32"}
_DQKV = {"dcontext": "*bf16", "dqkv": "*bf16", "sums": "*fp32"}
_ROTARY = {"qkv": "*bf16", "sequences": "*i32", **_REACH, "cosines": "*fp32", "sines": "*fp32"}
_ROTARY |= {"sizes": "*i32", "numbers": "*fp32", **_CONTEXT}
_STATISTICS = {"mean": "*fp32", "inverse": "*fp32"}
# Operands and results of each kernel, in order, with Triton's name of their type; "bf16" stands for the type of the
# computation.
OPERANDS = {
    "attention_forward": _QKV | _REACH | _STREAM | _CONTEXT,
    "attention_backward_whole": _QKV | _STREAM | _CONTEXT | _DQKV,
    "attention_backward": _QKV | _REACH | _STREAM | _CONTEXT | _DQKV,
    "norm_forward": {"x": "*bf16", "branch": "*bf16", "offset": "*bf16", "weight": "*fp32", "bias": "*fp32"}
    | _STREAM
    | {"y": "*bf16", "normal": "*bf16", "inverse": "*fp32"},
    "norm_backward": {"dy": "*bf16", "normal": "*bf16", "inverse": "*fp32", "weight": "*fp32"}
    | _STREAM
    | {"dx": "*bf16", "dbranch": "*bf16", "sums": "*fp32"},
    "gelu_backward": {"x": "*bf16", "offset": "*bf16", "dy": "*bf16", "sizes": "*i32", "dx": "*bf16", "sums": "*fp32"},
    "geglu_backward": {"x": "*bf16", "dy": "*bf16", "sizes": "*i32", "dx": "*bf16"},
    "table_gradient": {
        "order": "*i32",
        "starts": "*i32",
        "values": "*fp32",
        "dense": "*bf16",
        "sizes": "*i32",
        "table": "*fp32",
    },
    "rotary_attention_forward": _ROTARY,
    "rotary_attention_backward": _ROTARY | {"dcontext": "*bf16", "dqkv": "*bf16"},
    "residual_norm_forward": {"x": "*bf16", "branch": "*bf16", "weight": "*fp32"}
    | _STREAM
    | {"total": "*bf16", "y": "*bf16", **_STATISTICS},
    "residual_norm_backward": {"dy": "*bf16", "dresidual": "*bf16", "total": "*bf16", **_STATISTICS, "weight": "*fp32"}
    | _STREAM
    | {"dx": "*bf16", "dbranch": "*bf16", "sums": "*fp32"},
}
RESULTS = {
    "attention_forward": ("context", "normalizer"),
    "attention_backward_whole": ("dqkv", "sums"),
    "attention_backward": ("dqkv", "sums"),
    "norm_forward": ("y", "normal", "inverse"),
    "norm_backward": ("dx", "dbranch", "sums"),
    "gelu_backward": ("dx", "sums"),
    "geglu_backward": ("dx",),
    "table_gradient": ("table",),
    "rotary_attention_forward": ("context", "normalizer"),
    "rotary_attention_backward": ("dqkv",),
    "residual_norm_forward": ("total", "y", "mean", "inverse"),
    "residual_norm_backward": ("dx", "dbranch", "sums"),
}


class Text(NamedTuple):
    """One text of Triton's intermediate representation (TTIR)."""

    kernel: str  # the function's name in source/
    constants: tuple[tuple[str, int], ...]  # values of its tl.constexpr arguments
    warps: int  # of 32 threads, a program
    stages: int  # of the software pipeline of loops

    @property
    def file_name(self) -> str:
        """The name of the text's file in ir/."""
        return "-".join([self.kernel, *(str(value) for _, value in self.constants)]) + ".ttir"

    def read(self, dtype: str) -> str:
        """The text for a type of the computation, "bf16" or "f16"."""
        return _read(self.file_name).replace("bf16", dtype)


@functools.cache
def _read(file_name: str) -> str:
    return (resources.files(__package__) / "ir" / file_name).read_text(encoding="utf-8")


def attention_forward(length: int, head_size: int, dropout: bool, capability: tuple[int, int] = (9, 0)) -> Text:
    """The text for rows of `length` positions, a multiple of BLOCK, and a GPU's compute capability."""
    whole, warps = length == WHOLE_LENGTH, 4
    if whole:
        queries, keys, stages = BLOCK, WHOLE_LENGTH, 1
    elif length % 128:
        queries, keys, stages = BLOCK, BLOCK, 3
    elif _hopper(capability):  # two groups of four warps: one multiplies while the other computes exponentials
        queries, keys, stages, warps = 128, 128, 2, 8
    else:
        queries, keys, stages = 128, BLOCK, 2 if _little_shared_memory(capability) else 3
    constants = {"HEAD_SIZE": head_size, "QUERIES": queries, "KEYS": keys, "WHOLE": int(whole)}
    return _text("attention_forward", constants | {"DROPOUT": int(dropout)}, warps, stages)


def attention_backward(length: int, head_size: int, dropout: bool, capability: tuple[int, int] = (9, 0)) -> Text:
    """The text for rows of `length` positions, a multiple of BLOCK, and a GPU's compute capability."""
    if length == WHOLE_LENGTH and not _little_shared_memory(capability):
        constants = {"HEAD_SIZE": head_size, "LENGTH": length, "DROPOUT": int(dropout)}
        return _text("attention_backward_whole", constants, 8, 1)
    stages = 3 if _hopper(capability) else 2
    return _text("attention_backward", {"HEAD_SIZE": head_size, "BLOCK": BLOCK, "DROPOUT": int(dropout)}, 4, stages)


def norm_forward(width: int, dropout: bool) -> Text:
    """The text for vectors of `width` numbers, at most NORM_COLUMNS[-1]."""
    columns = _columns(width)
    return _text("norm_forward", {"COLUMNS": columns, "DROPOUT": int(dropout)}, _norm_warps(columns), 1)


def norm_backward(width: int, dropout: bool) -> Text:
    """The text for vectors of `width` numbers, at most NORM_COLUMNS[-1]."""
    columns = _columns(width)
    constants = {"COLUMNS": columns, "ROWS": NORM_ROWS, "DROPOUT": int(dropout)}
    return _text("norm_backward", constants, _norm_warps(columns), 1)


def gelu_backward(tanh: bool) -> Text:
    """The text for gelu, exact or in its tanh form."""
    constants = {"ROWS": GELU_ROWS, "COLUMNS": GELU_COLUMNS, "TURNS": GELU_TURNS, "TANH": int(tanh)}
    return _text("gelu_backward", constants, 8, 1)


def geglu_backward() -> Text:
    """The text for a gated gelu, exact."""
    return _text("geglu_backward", {"ROWS": GEGLU_ROWS, "COLUMNS": GEGLU_COLUMNS}, 4, 1)


def table_gradient(width: int) -> Text:
    """The text for a table of `width` columns, a multiple of TABLE_COLUMNS[0]."""
    columns = max(columns for columns in TABLE_COLUMNS if width % columns == 0)
    return _text("table_gradient", {"ROWS": 32, "COLUMNS": columns}, 4, 1)


def rotary_attention_forward(length: int, head_size: int, window: int, capability: tuple[int, int] = (9, 0)) -> Text:
    """The text for rows of `length` positions, a multiple of BLOCK, of which each attends `window` to both sides."""
    narrow = window < length  # smaller tiles waste less of a window
    queries = BLOCK if length % 128 or narrow or (head_size == 128 and _little_shared_memory(capability)) else 128
    constants = {"HEAD_SIZE": head_size, "QUERIES": queries, "KEYS": BLOCK}
    return _text("rotary_attention_forward", constants, 4, 2)


def rotary_attention_backward(head_size: int) -> Text:
    """The text for rows of any multiple of BLOCK positions."""
    return _text("rotary_attention_backward", {"HEAD_SIZE": head_size, "BLOCK": BLOCK}, 4, 1)


def residual_norm_forward(width: int, branch: bool, dropout: bool) -> Text:
    """The text for vectors of `width` numbers, at most NORM_COLUMNS[-1], alone or with a branch added."""
    columns = _columns(width)
    constants = {"COLUMNS": columns, "BRANCH": int(branch), "DROPOUT": int(branch and dropout)}
    return _text("residual_norm_forward", constants, _norm_warps(columns), 1)


def residual_norm_backward(width: int, dropout: bool) -> Text:
    """The text for vectors of `width` numbers, at most NORM_COLUMNS[-1]; `dropout`: of a branch."""
    columns = _columns(width)
    constants = {"COLUMNS": columns, "ROWS": NORM_ROWS, "DROPOUT": int(dropout)}
    return _text("residual_norm_backward", constants, _norm_warps(columns), 1)


def all_texts(capabilities: tuple[tuple[int, int], ...] = CAPABILITIES) -> list[Text]:
    """Every text that a shape may need on GPUs of these capabilities; those of one file differ by warps or stages."""
    lengths, switch = (BLOCK, WHOLE_LENGTH, 512), (False, True)
    texts = []
    for shape in itertools.product(lengths, HEAD_SIZES, switch, capabilities):
        texts += [attention_forward(*shape), attention_backward(*shape)]
    for columns, dropout in itertools.product(NORM_COLUMNS, switch):
        texts += [norm_forward(columns, dropout), norm_backward(columns, dropout)]
        texts += [residual_norm_forward(columns, branch, dropout) for branch in switch]
        texts += [residual_norm_backward(columns, dropout)]
    for size, window, capability in itertools.product(ROTARY_HEAD_SIZES, (64, 128), capabilities):
        texts += [rotary_attention_forward(128, size, window, capability), rotary_attention_backward(size)]
    texts += [*(gelu_backward(tanh) for tanh in switch), geglu_backward()]
    return list(dict.fromkeys(texts + [table_gradient(width) for width in TABLE_COLUMNS]))


def _text(kernel: str, constants: dict[str, int], warps: int, stages: int) -> Text:
    return Text(kernel, tuple(constants.items()), warps, stages)


def _columns(width: int) -> int:
    return next(columns for columns in NORM_COLUMNS if width <= columns)


def _little_shared_memory(capability: tuple[int, int]) -> bool:
    return capability in ((8, 6), (8, 9)) or capability[0] >= 12


def _hopper(capability: tuple[int, int]) -> bool:
    """Or later, with as much shared memory."""
    return capability[0] >= 9 and not _little_shared_memory(capability)


def _norm_warps(columns: int) -> int:
    return min(8, max(2, columns // 512))
