"""The exchanges that a recipe may name."""

from bert_horovod.exchange.base import Exchange
from bert_horovod.exchange.gradients import GradientExchange
from bert_horovod.exchange.onebit_adam import OneBitAdam
from bert_horovod.exchange.onebit_lamb import OneBitLamb
from bert_horovod.exchange.parameters import ParameterExchange
from bert_horovod.exchange.zero_one_adam import ZeroOneAdam

EXCHANGES: dict[str, type[Exchange]] = {
    "gradients": GradientExchange,
    "parameters": ParameterExchange,
    "onebit_adam": OneBitAdam,
    "onebit_lamb": OneBitLamb,
    "zero_one_adam": ZeroOneAdam,
}
