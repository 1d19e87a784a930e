"""The exchanges by their names in a recipe, exchange.method; the first is the default. No TensorFlow."""

from bert_horovod.exchange.compressed.largest_chunks_settings import LargestChunksSettings
from bert_horovod.exchange.compressed.onebit_adam_settings import OneBitAdamSettings
from bert_horovod.exchange.compressed.onebit_lamb_settings import OneBitLambSettings
from bert_horovod.exchange.compressed.powersgd_settings import PowerSgdSettings
from bert_horovod.exchange.compressed.zero_one_adam_settings import ZeroOneAdamSettings
from bert_horovod.exchange.dense.gradients_settings import GradientsSettings
from bert_horovod.exchange.local.diloco_settings import DiLoCoSettings
from bert_horovod.exchange.local.dreamddp_settings import DreamDdpSettings
from bert_horovod.exchange.local.local_sgd_settings import LocalSgdSettings
from bert_horovod.exchange.local.mt_dao_settings import MtDaoSettings
from bert_horovod.recipe.sections import ExchangeMethod

METHODS: dict[str, type[ExchangeMethod]] = {
    method.method: method
    for method in (
        GradientsSettings,
        LargestChunksSettings,
        PowerSgdSettings,
        OneBitAdamSettings,
        OneBitLambSettings,
        ZeroOneAdamSettings,
        LocalSgdSettings,
        MtDaoSettings,
        DreamDdpSettings,
        DiLoCoSettings,
    )
}
