"""Update rules, schedules and the loss scale: arithmetic only, no communication and no files.

base.py defines the class Rule; adamw, stable_adamw, muon, lamb, lans and sgd are the rules; rules.py finds
a rule by its name; applying.py computes an update with a rule.
"""
