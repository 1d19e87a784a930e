"""The update rules by their names in a recipe."""

from bert_horovod.optimizers import adamw, came, lamb, lans, merit, sgd
from bert_horovod.optimizers.base import Rule

RULES = {rule_module.RULE.name: rule_module.RULE for rule_module in (adamw, lamb, lans, sgd, came, merit)}


def rule(name: str) -> Rule:
    """The update rule `name` (`optimizer.name` of the recipe); raises ValueError if there is none."""
    if name not in RULES:
        raise ValueError(f"optimizer.name = {name!r}: expected one of {', '.join(RULES)}")
    return RULES[name]
