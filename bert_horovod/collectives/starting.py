"""Joining the launcher's world, with Horovod's settings, and the groups and pairs of ranks that a recipe needs."""

import os

from bert_horovod.collectives.horovod_world import HorovodWorld
from bert_horovod.collectives.launched import Launch, check_horovodruns_server
from bert_horovod.collectives.meetings import meetings
from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.recipe.reductions import may_sum_in_two_steps, sums_by_host
from bert_horovod.recipe.sections import Execution, Recipe
from bert_horovod.runtime.quiet import import_tensorflow


def knobs(execution: Execution, timeline: bool = False) -> dict[str, str]:
    """Horovod's settings, by environment variable; `timeline`: whether record_timeline may be called.

    A variable that is set already wins: HOROVOD_CYCLE_TIME and the like are the user's.
    """
    variables = {
        # Ranks may arrive minutes apart, because one rank of each host reads a large token store first; by default Gloo
        # aborts a rank that has waited 30 s.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
        # Horovod's own fusion makes sums depend on timing; the gradient buckets of this project take its place.
        "HOROVOD_FUSION_THRESHOLD": "0",
    }
    if execution.timeline or timeline:
        variables["HOROVOD_TIMELINE"] = "DYNAMIC"
    return variables


def connect(launched: Launch, recipe: Recipe | None = None, timeline: bool = False) -> World:
    """Join the launcher's world with Horovod's settings from the recipe; a setting by the launcher's flags wins.

    Args:
        launched: this process's place, from the launcher.
        recipe: the run's; it also decides which groups of ranks are made, because a group costs every collective a
            little. None: the defaults.
        timeline: whether record_timeline will be called, if `recipe` does not say so.

    Raises UserError if Horovod cannot join it.
    """
    if launched.size == 1:
        return World()
    for name, value in knobs(recipe.execution if recipe else Execution(), timeline).items():
        os.environ.setdefault(name, value)
    import_tensorflow()  # Horovod would import it with its messages
    try:
        import horovod.tensorflow as horovod

        if launched.launcher == "horovodrun":
            check_horovodruns_server()
        inside, across = _host_groups(launched) if recipe and sums_by_host(recipe) else ([], [])
        pairs: list[tuple[int, int]] = []
        if recipe and may_sum_in_two_steps(recipe) and _gloo_alone(horovod):
            # Round by round over all groups: Horovod takes up the sums of its groups in the order of this list.
            rounds = zip(*(meetings(ranks) for ranks in across or [range(launched.size)]), strict=True)
            pairs = [pair for pairs_of_groups in rounds for pair in pairs_of_groups]
        inside, across, sets = ([horovod.ProcessSet(ranks) for ranks in kind] for kind in (inside, across, pairs))
        horovod.init(process_sets=[*inside, *across, *sets])
    except ImportError as error:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but Horovod cannot be imported ({error}). "
            "run/setup.sh builds it; one process works without it"
        ) from error
    if horovod.size() != launched.size:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but Horovod made a world of {horovod.size()}: "
            f"this Horovod {'has' if horovod.mpi_built() else 'was built without'} MPI. "
            "Start with horovodrun instead, or install an MPI with its compiler mpicxx and run run/setup.sh again, "
            "which rebuilds Horovod with MPI"
        )
    others = {
        sum(pair) - launched.rank: HorovodWorld(horovod, group, f".pair.{pair[0]}.{pair[1]}")
        for pair, group in zip(pairs, sets, strict=True)
        if launched.rank in pair
    }
    return HorovodWorld(horovod, groups=(inside, across), pairs=others)


def _gloo_alone(horovod) -> bool:
    """Whether Gloo will carry the collectives: MPI's and NCCL's all-to-all need no pairs."""
    return os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo" and not horovod.nccl_built()


def _host_groups(launched: Launch) -> tuple[list[list[int]], list[list[int]]]:
    """The ranks of each host, and those of each local rank, if all hosts have as many consecutive ranks; else none."""
    size, local = launched.size, launched.local_size
    if not 1 < local < size or size % local:
        return [], []
    return [list(range(k, k + local)) for k in range(0, size, local)], [
        list(range(k, size, local)) for k in range(local)
    ]
