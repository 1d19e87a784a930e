"""The exchanges that a recipe may name."""

from bert_horovod.exchange.base import Exchange
from bert_horovod.exchange.gradients import GradientExchange
from bert_horovod.exchange.onebit_adam import OneBitAdam
from bert_horovod.exchange.parameters import ParameterExchange

EXCHANGES: dict[str, type[Exchange]] = {
    "gradients": GradientExchange,
    "parameters": ParameterExchange,
    "onebit_adam": OneBitAdam,
}
