"""What a run reads of each of several stores, for people: shares, tokens and epochs by phase."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from bert_horovod.batches.mixing import PERIOD
from bert_horovod.batches.text.mixture import weights_of_phase
from bert_horovod.recipe.fields import Numbers
from bert_horovod.recipe.sections import Recipe

MANY_EPOCHS = 4  # of a store: what is read more often teaches less than as much new text (arXiv 2305.16264)


def mixture_lines(recipe: Recipe, tokens: Mapping[str, int], fill: float = 1.0) -> Iterator[str]:
    """A line for each phase and store, one for each store's epochs in all phases, and warnings.

    `tokens`: those of a store's epoch, by name; `fill`: the share of a row's positions that hold tokens.
    """
    phases = {f"phase.{i}.mixture": phase.mixture for i, phase in enumerate(recipe.phase)}
    for key, mixture in {"data.mixture": recipe.data.mixture, **phases}.items():
        total = sum(number for _, number in mixture) if isinstance(mixture, Numbers) else 1.0
        if abs(total - 1) > 1e-9:
            yield f"{key}: its numbers sum to {total:g}, and are divided by that"
    width = max(map(len, tokens))
    in_all = dict.fromkeys(tokens, 0.0)
    rare: dict[str, list[str]] = {}  # the phases in which a store has less than one row, by name
    for number, phase in enumerate(recipe.phase):
        rows = phase.steps * phase.global_batch
        read = rows * phase.sequence_length * fill
        for name, share in weights_of_phase(recipe, number, tokens).items():
            share = share and max(share, Fraction(1, PERIOD))  # a row of each period at least: mixing.rows_of_period
            if 0 < share * rows < 1:
                rare.setdefault(name, []).append(str(number))
            epochs = float(share) * read / tokens[name]
            in_all[name] += epochs
            own = f"{float(share):6.1%}  {float(share) * read:16,.0f} tokens"
            yield f"phase {number}: {name:{width}}  {own}  {epochs:.3g} epochs"
    for name, epochs in in_all.items():
        yield f"run:     {name:{width}}  {epochs:.3g} epochs of {tokens[name]:,} tokens"
    for name, numbers in rare.items():
        yield (
            f"warning: {name} has less than one row in phase {', '.join(numbers)}, so perhaps none. Take a larger "
            "weight, or more steps"
        )
    for name, epochs in in_all.items():
        if epochs > MANY_EPOCHS:
            yield (
                f"warning: the run reads {name} {epochs:.0f} times; after {MANY_EPOCHS} epochs text teaches less than "
                "new text would (arXiv 2305.16264). Take a smaller weight, fewer steps or more text"
            )
