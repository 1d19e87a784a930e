"""The exchanges by their names in a recipe, exchange.method."""

from bert_horovod.exchange.base import Exchange
from bert_horovod.exchange.dreamddp import DreamDdpExchange
from bert_horovod.exchange.gradients import GradientExchange
from bert_horovod.exchange.largest_chunks import LargestChunksExchange
from bert_horovod.exchange.local_sgd import LocalSgdExchange
from bert_horovod.exchange.mt_dao import MtDaoExchange
from bert_horovod.exchange.onebit_adam import OneBitAdam
from bert_horovod.exchange.onebit_lamb import OneBitLamb
from bert_horovod.exchange.zero_one_adam import ZeroOneAdam

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
