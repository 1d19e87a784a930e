"""The exchanges by their names in a recipe, exchange.method; the first is the default."""

from bert_horovod.exchange.compressed.largest_chunks import LargestChunksSettings
from bert_horovod.exchange.compressed.onebit import OneBitAdamSettings, OneBitLambSettings
from bert_horovod.exchange.compressed.powersgd import PowerSgdSettings
from bert_horovod.exchange.dense.gradients import GradientsSettings
from bert_horovod.exchange.local.diloco import DiLoCoSettings
from bert_horovod.exchange.local.dreamddp import DreamDdpSettings
from bert_horovod.exchange.local.local_sgd import LocalSgdSettings
from bert_horovod.recipe.methods_found import Methods
from bert_horovod.recipe.sections import ExchangeMethod

METHODS = Methods(
    ExchangeMethod,
    "method",
    (
        GradientsSettings,
        LargestChunksSettings,
        PowerSgdSettings,
        OneBitAdamSettings,
        OneBitLambSettings,
        LocalSgdSettings,
        DreamDdpSettings,
        DiLoCoSettings,
    ),
)
