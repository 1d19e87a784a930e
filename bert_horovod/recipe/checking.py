"""Checks combinations of settings: each value is allowed alone, but not together with another one."""

from bert_horovod.errors import UserError
from bert_horovod.recipe.checking_exchange import check_exchange
from bert_horovod.recipe.checking_growth import check_growth
from bert_horovod.recipe.sections import STEP_RANGES, Optimizer, Recipe


def check_combinations(recipe: Recipe) -> None:
    model = recipe.model
    if model.hidden_size % model.num_attention_heads:
        raise UserError(
            f"model.num_attention_heads = {model.num_attention_heads} does not divide "
            f"model.hidden_size = {model.hidden_size}"
        )
    if model.embedding_size > model.hidden_size:
        raise UserError(
            f"model.embedding_size = {model.embedding_size}: expected at most "
            f"model.hidden_size = {model.hidden_size}, or 0 for embeddings of that width"
        )
    if model.shared_layers and model.num_hidden_layers % model.shared_layers:
        raise UserError(
            f"model.shared_layers = {model.shared_layers} does not divide "
            f"model.num_hidden_layers = {model.num_hidden_layers}; 1: all layers share one, 0: each has its own"
        )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        rate = getattr(model, name)
        if rate and not round(rate * 256):
            raise UserError(
                f"model.{name} = {rate}: expected 0, or more than 1/512: dropout is applied in steps of 1/256, "
                "so that this rate would be none"
            )
    if recipe.objective.pairs and model.type_vocab_size < 2:
        raise UserError(
            f"model.type_vocab_size = {model.type_vocab_size}: objective.pair = {recipe.objective.pair!r} "
            "needs at least 2"
        )
    for name in STEP_RANGES:
        steps = getattr(recipe.execution, name)
        if steps and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
            raise UserError(
                f"execution.{name} = {list(steps)}: expected [first, last] with 1 <= first <= last, or [] for no trace"
            )
    for i, phase in enumerate(recipe.phase):
        if phase.sequence_length > model.max_position_embeddings:
            raise UserError(
                f"phase.{i}.sequence_length = {phase.sequence_length}: expected at most "
                f"model.max_position_embeddings = {model.max_position_embeddings}"
            )
        if phase.warmup + phase.hold > 1:
            raise UserError(f"phase.{i}.warmup + hold = {phase.warmup + phase.hold:g}: expected at most 1")
        if phase.end_learning_rate > phase.learning_rate:
            raise UserError(
                f"phase.{i}.end_learning_rate = {phase.end_learning_rate:g}: expected at most "
                f"phase.{i}.learning_rate = {phase.learning_rate:g}"
            )
    _check_optimizer(recipe.optimizer)
    check_exchange(recipe)
    check_growth(recipe)


def _check_optimizer(optimizer: Optimizer) -> None:
    if optimizer.clipping == "bucket" and optimizer.name == "lans":
        raise UserError(
            "optimizer.clipping = 'bucket': optimizer.name = 'lans' divides each tensor's gradient by its norm and "
            "clips none; expected 'global', which is the default and does nothing here"
        )


def refuse_heads(recipe: Recipe, what: str) -> None:
    """Raise UserError if objective.heads is above 1, because only a classification can have several heads."""
    if recipe.objective.heads > 1:
        raise UserError(f"objective.heads = {recipe.objective.heads}: {what} has one head; expected 1")
