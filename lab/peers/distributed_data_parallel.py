"""The parameters of Hugging Face's BERT in PyTorch's DistributedDataParallel over Gloo, with its defaults.

horovodrun -np 2 -H node1:1,node2:1 python lab/peers/distributed_data_parallel.py --delay FILE --wire float16

horovodrun is the launcher alone. float16, powersgd (rank 1) and powersgd4 (rank 4) are PyTorch's own hooks. PowerSGD
has its error feedback and all gradients in one bucket, and begins with the third step. All micro-batches but a step's
last are under no_sync. How it is measured, says lab/scaling.py.
"""

# ruff: noqa: E402 (flags are read before anything that takes seconds to import)

import contextlib
import dataclasses
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ranks

arguments, recipe = ranks.parse(__doc__, ("float32", "float16", "powersgd", "powersgd4"))

import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

PORT = 29511
POWER_SGD = {"powersgd": 1, "powersgd4": 4}  # rank by wire
DENSE_STEPS = 2  # at the start of PowerSGD, as few as it allows
WHOLE_MODEL_MB = 100_000


def main() -> None:
    rank, size = (int(os.environ.get(f"HOROVOD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
    if "HOROVOD_GLOO_IFACE" in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["HOROVOD_GLOO_IFACE"]
    first = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")  # the launcher's host, which is rank 0's
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{first}:{PORT}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = BertForPreTraining if recipe.objective.pairs else BertForMaskedLM
    network = kind(BertConfig(**dataclasses.asdict(recipe.model))).train()
    profile = ranks.delays(arguments)
    # PowerSGD's callbacks wait for further sums in Gloo's two threads: with a second bucket both wait for ever.
    bucket_mb = WHOLE_MODEL_MB if arguments.wire in POWER_SGD else None
    parallel = DistributedDataParallel(Delayed(network, profile, rank), bucket_cap_mb=bucket_mb)
    if arguments.wire == "float16":
        parallel.register_comm_hook(None, fp16_compress_hook)
    step = delayed_step(parallel, profile)
    if arguments.wire in POWER_SGD:
        rank_of_factors = POWER_SGD[arguments.wire]
        state = PowerSGDState(None, matrix_approximation_rank=rank_of_factors, start_powerSGD_iter=DENSE_STEPS)
        parallel.register_comm_hook(state, powerSGD_hook)
        for _ in range(DENSE_STEPS):
            step(True)
    numbers = sum(numbers_sent(parameter) for parameter in network.parameters())
    ranks.report(arguments, rank, size, numbers, step, torch.distributed.barrier)
    torch.distributed.destroy_process_group()


def numbers_sent(parameter: torch.Tensor) -> int:
    """Of a parameter's gradient: all, or with PowerSGD a matrix's two factors, if these are less than half of it."""
    numbers = parameter.numel()
    if arguments.wire in POWER_SGD and parameter.dim() > 1:
        factors = POWER_SGD[arguments.wire] * (parameter.shape[0] + parameter[0].numel())
        return factors if 2 * factors < numbers else numbers
    return numbers


class Delayed(torch.nn.Module):
    """A network that sleeps; a step's gradients sum up to the parameters and 1 for each looked-up word.

    The first micro-batch gives out the parameters, the others zeros, which are really added. The gradient of the
    looked-up words is made and added to that of the output weights as PyTorch does it: over the whole table.
    """

    def __init__(self, network: torch.nn.Module, profile: dict, rank: int) -> None:
        super().__init__()
        self.network = network
        self.forward_s, self.backward_s = profile["forward_s"], ranks.backward_s(profile)
        named, last = dict(network.named_parameters()), len(self.backward_s) - 2
        self.parts = [
            [parameter for name, parameter in named.items() if ranks.part_of(name, last) == part]
            for part in range(last + 2)
        ]
        self.zeros = [[torch.zeros_like(parameter) for parameter in part] for part in self.parts]
        self.words = [torch.from_numpy(words) for words in ranks.words(arguments, recipe, rank)]
        table = network.get_input_embeddings().weight
        self.tables = [[parameter is table for parameter in part] for part in self.parts]

    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        """x is a scalar that wants a gradient, k the micro-batch's number."""
        time.sleep(self.forward_s)
        gradients = self.zeros if k else self.parts
        for part in reversed(list(zip(self.backward_s, gradients, self.tables, self.parts, strict=True))):
            x = _Part.apply(x, self.words[k], *part[:3], *part[3])
        return x


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, words, seconds, gradients, tables, *_parameters):
        ctx.words, ctx.seconds, ctx.gradients, ctx.tables = words, seconds, gradients, tables
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        time.sleep(ctx.seconds)
        given = [
            _with_lookups(gradient.detach(), ctx.words) if is_table else gradient.detach()
            for gradient, is_table in zip(ctx.gradients, ctx.tables, strict=True)
        ]
        return dx.clone(), *[None] * 4, *given


def _with_lookups(table: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """A table's gradient [vocabulary, hidden] and that of its looked-up words [rows, length], which is 1."""
    rows = torch.ones(*words.shape, table.shape[1])
    return torch.ops.aten.embedding_dense_backward(rows, words, table.shape[0], -1, False).add_(table)


def delayed_step(parallel: DistributedDataParallel, profile: dict):
    """A step that sleeps where it would compute or update; adding gradients up and their norm are real, as in ours."""
    last = arguments.micro_batches - 1

    def step(communicate: bool) -> None:
        for k in range(last + 1):
            with contextlib.nullcontext() if communicate and k == last else parallel.no_sync():
                parallel(torch.zeros([], requires_grad=True), k).backward()
        torch.nn.utils.clip_grad_norm_(parallel.parameters(), math.inf)  # inf: values stay
        time.sleep(profile["update_s"])
        parallel.zero_grad()

    return step


if __name__ == "__main__":
    main()
