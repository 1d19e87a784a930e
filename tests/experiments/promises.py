"""What every exchange is tested for by tests/exchange/test_promises.py: the lines of experiments."""

from tests.exchange.exchange_jobs import exchange_recipe
from tests.exchange.promises import ADAMW, Promise, frozen
from tests.experiments import transcribed

# Of 0/1 Adam: three steps with dense gradients in a row, three in every second, then every fourth, behind a warm-up of
# three steps; ranks agree by the steps whose rate is half the peak, 19, and a quarter.
SEES, SYNCS = {1, 2, 3, 4, 5, 6, 8, 10, 12}, {13, 14, 15, 16, 17, 18, 20, 22, 24, 28}

PROMISES = {
    "zero_one_adam": frozen(
        "zero_one_adam", transcribed.zero_one_adam, 12, SEES, SYNCS, warmup=0.1, interval=4, variance_updates=3
    ),
    "mt_dao": Promise(
        exchange_recipe(48, exchange={"method": "mt_dao", "interval": 3}, optimizer=ADAMW),
        24,
        5,
        (12,),
        transcribed.mt_dao,
    ),
}
