"""The rows of experiments in tables of other tests, which ask for them by tests.toys.more_rows; data alone."""

import pytest

# exchange/test_whole_runs.py
_LOCAL = {"method": "parameters", "interval": 4}
_ZERO_ONE = {"method": "zero_one_adam", "dense": 0.4, "interval": 2, "variance_updates": 3}
WHOLE_RUNS = {
    "local came": (_LOCAL, 0.003, 0.01, (8,), {"optimizer": {"name": "came", "beta_3": 0.99}}),
    "0/1 Adam": (_ZERO_ONE, 0.005, 0.0, (6, 14), {}),
}

# exchange/test_staged.py, costs/test_exchanges.py
STAGED = {"zero_one_adam": {"exchange": _ZERO_ONE}}
REMEMBERED = [("zero_one_adam", 10, {"variance_updates": 3})]

# exchange/test_refusals.py
OUT_OF_RANGE = [("zero_one_adam", "variance_updates=0")]
OF_ANOTHER = [("mt_dao", "dense = 0.5")]
NOT_TOGETHER = [
    ("method=mt_dao numerics.wire=float16", r"numerics\.wire = 'float16': .*'mt_dao'.*expected float32"),
    ("method=mt_dao optimizer.name=lamb", r"optimizer\.name = 'lamb': .*'mt_dao' has an update rule.*adamw"),
    ("method=zero_one_adam optimizer.name=lans", r"optimizer\.name = 'lans'.*expected adamw"),
    (
        "method=zero_one_adam optimizer.bias_correction=false",
        r"optimizer\.bias_correction = false.*expected true",
    ),
    ("method=mt_dao momentum_interval=3", r"momentum_interval = 3: there is no such .*; set exchange\.interval"),
    ("method=zero_one_adam interval=8", r"phase\.0\.steps = 20: .*exchange\.interval = 8\); expected a multiple"),
    ("method=zero_one_adam interval=3", r"exchange\.interval = 3.*power of two"),
    ("method=mt_dao interval=4 execution.checkpoint_steps=6", r"execution\.checkpoint_steps = 6: "),
]

# exchange/test_local_sgd.py: whether it has an update rule of its own
ALONE = [pytest.param("mt_dao", True, marks=pytest.mark.slow)]

# exchange/test_updater.py, optimizers/test_slots.py, recipe_files/test_loading.py: a learning rate and settings
RULE_RUNS = {"came": (0.003, {"beta_3": 0.99}), "merit": (0.2, {})}
MADE_FOR = {"mt_dao": "adamw"}

# costs/test_exchanges.py, test_planner.py, test_choices.py
SENT = {
    "zero_one_adam": {"exchange": {"method": "zero_one_adam", "dense": 0.4, "interval": 8, "variance_updates": 3}},
    "mt_dao": {"exchange": {"method": "mt_dao", "interval": 4}},
}
PLANNED = {
    "zero_one_adam": {"exchange": {"method": "zero_one_adam", "dense": 0.1, "interval": 4}},
    "mt_dao": {"exchange": {"method": "mt_dao", "interval": 10}},
}
EXPOSED = ["mt_dao"]

# recipe/test_read_settings.py: a rule with each method, so that each of both is run once
PAIRS = {"gradients": "came", "diloco": "merit", "mt_dao": "adamw", "zero_one_adam": "adamw"}
FULL_PAIRS = ["mt_dao"]

# finetuning/test_embeddings.py
RANKS_DIFFER = [
    ("exchange.method='mt_dao' exchange.interval=4", "exchange.method = 'mt_dao': the ranks' parameters differ"),
]

# finetuning/kinds/cases.py
HEADS = {"heads": ("finetuning.head=multiverse", "finetuning.heads=3")}
