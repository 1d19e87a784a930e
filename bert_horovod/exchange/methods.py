"""The exchanges by their names in a recipe, exchange.method."""

from bert_horovod.exchange.base import Exchange
from bert_horovod.exchange.compressed.largest_chunks import LargestChunksExchange
from bert_horovod.exchange.compressed.onebit_adam import OneBitAdam
from bert_horovod.exchange.compressed.onebit_lamb import OneBitLamb
from bert_horovod.exchange.compressed.zero_one_adam import ZeroOneAdam
from bert_horovod.exchange.dense.gradients import GradientExchange
from bert_horovod.exchange.local.dreamddp import DreamDdpExchange
from bert_horovod.exchange.local.local_sgd import LocalSgdExchange
from bert_horovod.exchange.local.mt_dao import MtDaoExchange

EXCHANGES: dict[str, type[Exchange]] = {
    "gradients": GradientExchange,
    "largest_chunks": LargestChunksExchange,
    "onebit_adam": OneBitAdam,
    "onebit_lamb": OneBitLamb,
    "zero_one_adam": ZeroOneAdam,
    "parameters": LocalSgdExchange,
    "mt_dao": MtDaoExchange,
    "dreamddp": DreamDdpExchange,
}
