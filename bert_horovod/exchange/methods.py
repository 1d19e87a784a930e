"""The exchanges that a recipe may name."""

from bert_horovod.exchange.base import Exchange
from bert_horovod.exchange.dreamddp import DreamDdpExchange
from bert_horovod.exchange.gradients import GradientExchange
from bert_horovod.exchange.largest_chunks import LargestChunksExchange
from bert_horovod.exchange.mt_dao import MtDaoExchange
from bert_horovod.exchange.parameters import ParameterExchange

EXCHANGES: dict[str, type[Exchange]] = {
    "gradients": GradientExchange,
    "largest_chunks": LargestChunksExchange,
    "parameters": ParameterExchange,
    "mt_dao": MtDaoExchange,
    "dreamddp": DreamDdpExchange,
}
