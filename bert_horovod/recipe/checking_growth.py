"""Checks the settings of phases with more layers than the phase before, or in which a part of the model trains."""

from bert_horovod.errors import UserError
from bert_horovod.recipe.sections import Recipe


def check_growth(recipe: Recipe) -> None:
    """Raise UserError if a phase's num_hidden_layers, trained_layers or grow cannot work."""
    depths = [phase.num_hidden_layers or recipe.model.num_hidden_layers for phase in recipe.phase]
    for i, (phase, depth) in enumerate(zip(recipe.phase, depths, strict=True)):
        if phase.trained_layers > depth:
            raise UserError(
                f"phase.{i}.trained_layers = {phase.trained_layers}: the model has {depth} layers in this phase; "
                "expected at most as many, or 0 to train everything"
            )
        _check_border(recipe, i, depths[i - 1] if i else None, depth)
    if depths[-1] != recipe.model.num_hidden_layers:
        raise UserError(
            f"phase.{len(depths) - 1}.num_hidden_layers = {depths[-1]}: the last phase trains the whole model; "
            f"expected model.num_hidden_layers = {recipe.model.num_hidden_layers}"
        )
    for name in ("shared_layers", "embedding_size"):
        if not recipe.whole and getattr(recipe.model, name):
            raise UserError(
                f"model.{name} = {getattr(recipe.model, name)}: an ALBERT trains as a whole; expected 0 with "
                "phase.N.num_hidden_layers or trained_layers, or none of these"
            )
    if not recipe.whole and not recipe.exchange.grows:
        raise UserError(
            f"exchange.method = {recipe.exchange.method!r}: what it keeps of each tensor is not made for tensors that "
            "come, or begin to train, in a later phase; expected 'gradients' with phase.N.num_hidden_layers or "
            "trained_layers"
        )


def _check_border(recipe: Recipe, i: int, before: int | None, depth: int) -> None:
    """Check how phase i changes the model's depth: from `before` layers (None: no phase before) to `depth` layers."""
    grow = recipe.phase[i].grow
    if before is None or depth == before:
        if grow != "none":
            reason = "the first phase has none to copy" if before is None else f"phase.{i - 1} has {before} layers too"
            raise UserError(f"phase.{i}.grow = {grow!r}: no layers are added, because {reason}; expected 'none'")
        return
    if depth < before:
        raise UserError(
            f"phase.{i}.num_hidden_layers = {depth}: a model cannot shrink; expected at least the {before} layers of "
            f"phase.{i - 1}"
        )
    if grow == "none":
        raise UserError(
            f"phase.{i}.num_hidden_layers = {depth}: phase.{i - 1} has {before} layers; expected phase.{i}.grow = "
            "'stack' or 'top', which says what the new ones are copies of"
        )
    if grow == "stack" and depth % before:
        raise UserError(
            f"phase.{i}.num_hidden_layers = {depth}: phase.{i}.grow = 'stack' copies all {before} layers of "
            f"phase.{i - 1} as a whole; expected a multiple of {before}"
        )
    if grow == "top" and depth > 2 * before:
        raise UserError(
            f"phase.{i}.num_hidden_layers = {depth}: phase.{i}.grow = 'top' copies the uppermost layers once, and "
            f"phase.{i - 1} has {before}; expected at most {2 * before}"
        )
