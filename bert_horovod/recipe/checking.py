"""Checks combinations of settings: values that are not allowed together, and those that nothing reads."""

import dataclasses
import re
from collections.abc import Collection, Iterator
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import Numbers, ReadIf
from bert_horovod.recipe.sections import REDUCTIONS, Recipe
from bert_horovod.recipe.settings import Objective
from bert_horovod.storage.places import parse_place
from bert_horovod.storage.reading import shown


def check_combinations(recipe: Recipe) -> None:
    check_model(recipe)
    model = recipe.model
    if recipe.objective.pairs and model.type_vocab_size < 2:
        raise UserError(
            f"model.type_vocab_size = {model.type_vocab_size}: objective.pair = {recipe.objective.pair!r} "
            "needs at least 2"
        )
    _check_disjoint_masks(recipe.objective)
    if len(set(recipe.execution.trackers)) < len(recipe.execution.trackers):
        raise UserError(f"execution.trackers = {list(recipe.execution.trackers)}: expected each once")
    mirror = recipe.execution.mirror
    if mirror and parse_place(mirror, "execution.mirror =").scheme in ("http", "https", "hf"):
        raise UserError(f"execution.mirror = {mirror}: expected a place to write to, such as s3://, or a directory")
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
    _check_mixtures(recipe)
    _check_card(recipe)
    recipe.optimizer.check(recipe)
    check_exchange(recipe)
    check_growth(recipe)


def check_model(recipe: Recipe) -> None:
    """Raise UserError if settings of [model] are not allowed together; the rest of the recipe decides less."""
    model = recipe.model
    if model.hidden_size % model.num_attention_heads:
        raise UserError(
            f"model.num_attention_heads = {model.num_attention_heads} does not divide "
            f"model.hidden_size = {model.hidden_size}"
        )
    model.check(recipe)
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


def _check_disjoint_masks(objective: Objective) -> None:
    """Raise UserError if masks cannot be disjoint: what is masked together must be single tokens of one window."""
    others = {
        "pair": (objective.pair == "next_sentence", "a wrong pair has another second segment each time", "none"),
        "whole_word_masking": (objective.whole_word_masking, "words do not fill a count of tokens", False),
        "ngram": (objective.ngram > 1, "spans are drawn anew each time", 1),
        "priority_words": (objective.priority_words, "listed words are masked each time", ""),
    }
    for name, (clashes, why, expected) in others.items():
        if objective.masks == "disjoint" and clashes:
            raise UserError(
                f"objective.{name} = {shown(getattr(objective, name))}: objective.masks = 'disjoint' cannot follow it, "
                f"because {why}; expected {shown(expected)}, or masks = 'drawn'"
            )


def _check_mixtures(recipe: Recipe) -> None:
    """Raise UserError if a mixture leaves out every store."""
    phases = {f"phase.{i}.mixture": phase.mixture for i, phase in enumerate(recipe.phase)}
    for key, mixture in {"data.mixture": recipe.data.mixture, **phases}.items():
        if isinstance(mixture, Numbers) and not sum(number for _, number in mixture):
            raise UserError(f"{key} = {mixture}: its numbers sum to 0; expected at least one above 0")


def _check_card(recipe: Recipe) -> None:
    """Raise UserError unless the words of [card] are codes that the Hugging Face Hub may know."""
    for language in recipe.card.language:
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*|multilingual", language):
            raise UserError(
                f"card.language = {shown(language)}: expected codes of ISO 639, as in ['en', 'de'], or 'multilingual'"
            )
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*|", recipe.card.license):
        raise UserError(
            f"card.license = {shown(recipe.card.license)}: expected its name on the Hugging Face Hub, as in "
            "'apache-2.0', 'cc-by-4.0' or 'other'"
        )


def check_exchange(recipe: Recipe) -> None:
    """Raise UserError if the exchange's settings cannot work, alone or with the rest of the recipe."""
    exchange, wire, reduction = recipe.exchange, recipe.numerics.wire, recipe.execution.reduction
    if recipe.optimizer.clipping == "bucket" and not exchange.clips_buckets:
        raise UserError(
            f"optimizer.clipping = 'bucket': exchange.method = {exchange.method!r} has a clipping of its own; expected "
            "'global', or exchange.method = 'gradients'"
        )
    if exchange.optimizer not in ("", recipe.optimizer.name):
        raise UserError(
            f"optimizer.name = {recipe.optimizer.name!r}: exchange.method = {exchange.method!r} "
            f"{exchange.why_optimizer or f'is made for {exchange.optimizer}'}; expected {exchange.optimizer}"
        )
    if wire not in exchange.wires:
        raise UserError(
            f"numerics.wire = {wire!r}: exchange.method = {exchange.method!r} {exchange.why_wires}; expected "
            f"{' or '.join(exchange.wires)}"
        )
    if reduction not in ("auto", *REDUCTIONS[wire]):
        raise UserError(
            f"execution.reduction = {reduction!r}: numerics.wire = {wire!r} goes by {REDUCTIONS[wire][0]} alone; "
            "expected auto"
        )
    exchange.check(recipe)
    _check_steps_where_ranks_agree(recipe)


def _check_steps_where_ranks_agree(recipe: Recipe) -> None:
    """Raise UserError unless phases end, and states are saved, evaluated and compared, where ranks do not differ."""
    exchange, agreement = recipe.exchange, recipe.exchange.agreement
    steps = {f"phase.{i}.steps": phase.steps for i, phase in enumerate(recipe.phase)}
    steps |= {
        f"execution.{name}": getattr(recipe.execution, name)
        for name in ("checkpoint_steps", "evaluate_steps", "consistency_steps")
    }
    for name, value in steps.items():
        if value % agreement:
            made_of = " and ".join(f"exchange.{each} = {getattr(exchange, each)}" for each in exchange.intervals)
            raise UserError(
                f"{name} = {value}: ranks are equal only every {agreement} steps ({made_of}); expected a multiple of it"
            )


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


def idle_settings(recipe: Recipe, task: str, usual: Recipe | None = None) -> dict[str, str]:
    """The settings that nothing reads, as `section.key` or `phase.N.key`, each with a sentence that says why.

    `task`: as in ReadIf.tasks; `usual`: has the values that are no wish of anybody; None: the defaults.
    """
    found = {}
    for name, section, standard, alone in _sections(recipe, usual):
        for entry in dataclasses.fields(section):
            condition: ReadIf | None = entry.metadata.get("read_if")
            default = getattr(standard, entry.name, entry.metadata.get("usual", entry.default))
            value = getattr(section, entry.name)
            if condition is None or value == default:
                continue
            key = f"{name}.{entry.name}"
            expected = f"expected {shown(default)}"
            if condition.tasks and task not in condition.tasks:
                found[key] = f"{key} = {shown(value)}: {task} does not read it; {expected}"
            elif condition.holds and not condition.holds(alone):
                found[key] = f"{key} = {shown(value)}: it is read only with {condition.words}; {expected}, or that"
    return found


def refuse_idle(recipe: Recipe, task: str, wished: Collection[str], usual: Recipe | None = None) -> None:
    """Raise UserError if nothing reads one of the wished settings; arguments as in idle_settings."""
    problems = [why for key, why in idle_settings(recipe, task, usual).items() if key in wished]
    if problems:
        raise UserError("; ".join(problems))


def _sections(recipe: Recipe, usual: Recipe | None) -> Iterator[tuple[str, Any, Any, Recipe]]:
    """Each section and each phase with its name, what stands for it in `usual`, and the recipe, of this phase alone."""
    for field in dataclasses.fields(recipe):
        if field.name == "notes":
            continue
        section, standard = getattr(recipe, field.name), usual and getattr(usual, field.name)
        if isinstance(section, tuple):
            for number, phase in enumerate(section):
                same = standard[number] if standard and number < len(standard) else None
                yield f"{field.name}.{number}", phase, same, dataclasses.replace(recipe, phase=(phase,))
        else:
            yield field.name, section, standard, recipe
