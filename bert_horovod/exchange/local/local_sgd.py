"""Local updates: each rank updates its own parameters, and ranks average them at an interval of steps (local SGD).

    x_r, m_r, v_r <- rule(x_r, m_r, v_r, n g_r)          every step; g_r: rank r's share of the gradient, n ranks
    x_r <- (x_1 + ... + x_n) / n, and so m_r and v_r     after every exchange.interval steps

(Stich 2019, arXiv 1805.09767.) The rule may be any optimizer's. Slots are averaged with the parameters, so that after
an average all ranks are equal, and the run may be compared, evaluated and saved. With adamw that is three times the
bytes; on a toy model the loss was 3.249 nats so, and 3.260 with parameters alone.

g_1 + ... + g_n is the global gradient. So with plain SGD and an interval of 1 the average is
x - lr (g_1 + ... + g_n), the same as with the exchange of gradients, up to rounding. With adamw and an interval of 1, m
is the same as with the exchange of gradients at the same parameters, but v is not: it is the mean of the ranks' squared
gradients, which contains the variance over ranks; the exchange of gradients squares the mean. Each rank clips by the
norm of its own gradient.

Between averages ranks differ, so nothing may be compared, evaluated or saved there: recipe/checking.py allows
these only at steps that the interval divides.
"""

from bert_horovod.exchange.local.local_step import LocalExchange


class LocalSgdExchange(LocalExchange):
    """See exchange.local.local_step.LocalExchange."""

    def after_step(self, step: int, loss: float) -> str:
        if self.ranks_equal_after(step) and self._world.size > 1:
            self._average()
        return ""

    def _numbers_reduced(self) -> float:
        return self._numbers / self._agreement
