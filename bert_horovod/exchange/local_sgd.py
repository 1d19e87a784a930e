"""Local updates: each rank updates its own parameters, and every so many steps all are averaged (local SGD).

    x_r, m_r, v_r <- rule(x_r, m_r, v_r, n g_r)          every step; g_r: rank r's share of the gradient, n ranks
    x_r <- (x_1 + ... + x_n) / n, and so m_r and v_r     after every exchange.interval steps

(Stich 2019, arXiv 1805.09767.) The rule is any optimizer's. Its slots are averaged with the parameters, because then
all ranks are equal after an average, which may be compared, evaluated and saved. With adamw that is three times the
bytes; docs/exchange.md has what it gained on a toy.

g_1 + ... + g_n is the global gradient, so that with plain SGD and an interval of 1 the average is
x - lr (g_1 + ... + g_n): what the exchange of gradients gives, to rounding. With adamw and an interval of 1, m is that
of the exchange of gradients at the same parameters, and v is not: it is a mean of the ranks' squares, which holds the
variance over ranks too, where the exchange of gradients has squares of the mean. Clipping is by each rank's own norm.

Between averages ranks differ, so that nothing may be compared, evaluated or saved there: recipe/checking_exchange.py
holds all these to steps that the interval divides.
"""

from bert_horovod.exchange.local_step import LocalExchange


class LocalSgdExchange(LocalExchange):
    """See exchange.local_step.LocalExchange."""

    def after_step(self, step: int, loss: float) -> str:
        if self.agrees_after(step) and self._world.size > 1:
            self._average()
        return ""

    def _numbers_reduced(self) -> float:
        return self._numbers / self._agreement
