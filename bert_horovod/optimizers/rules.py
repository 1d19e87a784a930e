"""The update rules by their names in a recipe, optimizer.name; the first is the default."""

from bert_horovod.optimizers.adamw import AdamW
from bert_horovod.optimizers.lamb import Lamb
from bert_horovod.optimizers.lans import Lans
from bert_horovod.optimizers.muon import Muon
from bert_horovod.optimizers.sgd import Sgd
from bert_horovod.optimizers.stable_adamw import StableAdamW
from bert_horovod.recipe.methods_found import Methods
from bert_horovod.recipe.sections import Optimizer

RULES = Methods(Optimizer, "name", (AdamW, StableAdamW, Muon, Lamb, Lans, Sgd))
