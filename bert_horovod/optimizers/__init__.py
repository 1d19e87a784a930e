"""Update rules, schedules and the loss scale: arithmetic only, no communication and no files.

base.py says what a rule is; adamw, lamb, lans, sgd, came and merit are the rules; rules.py finds a rule by its name,
and applying.py computes an update with it.
"""
