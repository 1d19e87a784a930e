"""Ranks with different devices: only some with a GPU are refused, several kinds of GPU are warned of.

All ranks get equally many rows, whatever their device, because rows and dropout masks are functions of their place in
the global batch, and because one micro-batch has one compiled shape. So the slowest device sets the pace of all.
"""

from collections.abc import Sequence

from bert_horovod.costs.gpus import gpu_peak
from bert_horovod.errors import UserError
from bert_horovod.runtime.devices import gpu_details


def device_kind() -> str | None:
    """The name of this rank's GPU; None: it computes on the CPU."""
    details = gpu_details()
    return None if details is None else details.get("device_name", "a GPU without a name")


def check_kinds(hosts: Sequence[str], kinds: Sequence[str | None], precision: str) -> str | None:
    """A warning if ranks have several kinds of GPU, with what that costs at the data sheets' rates; None: all alike.

    Args:
        hosts: each rank's.
        kinds: each rank's `device_kind`.
        precision: the recipe's.

    Raises:
        UserError: some ranks have a GPU and others have none.
    """
    ranks = {kind: [rank for rank, each in enumerate(kinds) if each == kind] for kind in kinds}
    if len(ranks) == 1:
        return None
    if without := ranks.get(None):
        lacking = ", ".join(dict.fromkeys(hosts[rank] for rank in without))
        raise UserError(
            f"rank(s) {_shown(without)} on {lacking} found no GPU, the other ranks have one. The driver or "
            "CUDA_VISIBLE_DEVICES there is at fault: see nvidia-smi and `bert-horovod doctor`, or leave the host out. "
            "For a run on CPUs alone: CUDA_VISIBLE_DEVICES= before the command"
        )
    having = "; ".join(f"rank(s) {_shown(numbers)}: {kind}" for kind, numbers in ranks.items())
    cost = _cost(kinds, precision)
    return f"GPUs of several kinds: {having}. All get equally many rows: the slowest sets the pace{cost}"


def _cost(kinds: Sequence[str | None], precision: str) -> str:
    """How much of all devices' rates is lost by waiting, for people; "" where a data sheet is not known."""
    rates = [gpu_peak(kind or "", precision, tensor_float_32=True) for kind in kinds]
    known = [rate for rate in rates if rate]
    if len(known) < len(rates):
        return ""
    return f", and {1 - min(known) * len(known) / sum(known):.0%} of their data sheets' rates are lost by waiting"


def _shown(ranks: Sequence[int]) -> str:
    """Numbers of ranks for people, runs of them joined: 0-3, 6."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)
