"""What the kernels compute, as TensorFlow's own operations: layers with kernels run with these on a CPU."""

from collections.abc import Sequence

import tensorflow as tf

from bert_horovod.model.forward import DropoutState, random_bytes, threshold
from bert_horovod.model.gpu_kernels import catalogue
from bert_horovod.model.kernels import geglu_gradient, gelu_gradient

LOG2_E = 1.4426950408889634


class Emulated:
    """Stands in for call.call; `rates`: dropout of attention and of hidden states."""

    def __init__(self, *rates: float) -> None:
        self.rates = {threshold(rate): rate for rate in rates}

    def __call__(
        self,
        text: catalogue.Text,
        dtype: tf.DType,
        operands: Sequence[tf.Tensor],
        results: Sequence[tuple[Sequence[int], tf.DType]],
        grid: tuple[int, int, int],
    ) -> list[tf.Tensor]:
        given = dict(zip(catalogue.OPERANDS[text.kernel], operands, strict=False))
        outputs = getattr(self, text.kernel.removesuffix("_whole"))(given, dict(text.constants))
        return [
            tf.zeros(shape, kind) if each is None else tf.cast(tf.reshape(each, shape), kind)
            for each, (shape, kind) in zip(outputs, results, strict=True)
        ]

    def factors(self, given: dict[str, tf.Tensor], shape: list[int]) -> tf.Tensor:
        """Of dropout, with the numbers that the kernel reads."""
        sizes = tf.get_static_value(given["sizes"])
        state = DropoutState(given["key"], given["first_row"])
        draws = random_bytes(shape, self.rates[sizes[2]], given["site"] + int(sizes[3]), state)
        return tf.where(tf.cast(draws, tf.int32) >= int(sizes[2]), given["numbers"][1], 0.0)

    def heads(self, given: dict[str, tf.Tensor], x: tf.Tensor, turned: int = 0) -> list[tf.Tensor]:
        """The parts of x [n, parts * hidden], [rows, heads, length, size] each; the first `turned` ones by angles."""
        rows, length = given["sequences"].shape
        heads = tf.get_static_value(given["sizes"])[1]
        count = x.shape[1] // (given["qkv"].shape[1] // 3)
        parts = tf.unstack(tf.transpose(tf.reshape(x, [rows, length, count, heads, -1]), [2, 0, 3, 1, 4]))
        if "cosines" in given:
            for i in range(turned):
                first, second = tf.split(parts[i], 2, -1)
                cosines, sines = given["cosines"][:, None], given["sines"][:, None]
                parts[i] = tf.concat([first * cosines - second * sines, second * cosines + first * sines], -1)
        return parts

    def scores(self, given: dict[str, tf.Tensor], query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """In units of log2."""
        sequences, length = given["sequences"], given["sequences"].shape[1]
        same = sequences[:, None, :, None] == sequences[:, None, None, :]
        if "cosines" in given:
            apart = tf.abs(tf.range(length)[:, None] - tf.range(length))
            same &= apart <= int(tf.get_static_value(given["sizes"])[2])
        return tf.where(same, query @ tf.linalg.matrix_transpose(key) * given["numbers"][0] * LOG2_E, -1e30)

    def attention_forward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        x = given["qkv"] + given["biases"] if "biases" in given else given["qkv"]
        query, key, value = self.heads(given, x, turned=2)
        scores = self.scores(given, query, key)
        normalizer = tf.reduce_logsumexp(scores / LOG2_E, -1) * LOG2_E
        weights = 2 ** (scores - normalizer[..., None])
        if constants.get("DROPOUT"):
            weights *= self.factors(given, weights.shape)
        return [tf.transpose(weights @ value, [0, 2, 1, 3]), normalizer]

    rotary_attention_forward = attention_forward

    def attention_backward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(given["qkv"])
            x = given["qkv"] + given["biases"] if "biases" in given else given["qkv"]
            query, key, value = self.heads(given, x, turned=2)
            (context,), (dcontext,) = (self.heads(given, given[name]) for name in ("context", "dcontext"))
            scores = self.scores(given, query, key)
            probabilities = tf.stop_gradient(2 ** (scores - given["normalizer"][..., None]))
            factors = self.factors(given, probabilities.shape) if constants.get("DROPOUT") else 1.0
            weights = probabilities * factors
            dweights = dcontext @ tf.linalg.matrix_transpose(value) * factors
            rows = tf.reduce_sum(context * dcontext, -1, keepdims=True)
            dscores = tf.stop_gradient(probabilities * (dweights - rows)) / LOG2_E
            # A sum whose gradient is that of the loss.
            total = tf.reduce_sum(scores * dscores) + tf.reduce_sum(weights @ value * dcontext)
        dqkv = tape.gradient(total, given["qkv"])
        if "biases" not in given:
            return [dqkv]
        rows, length = given["sequences"].shape
        parts = 1 if "LENGTH" in constants else length // catalogue.BLOCK
        return [dqkv, tf.reduce_sum(tf.reshape(dqkv, [rows * parts, length // parts, -1]), 1)]

    rotary_attention_backward = attention_backward

    def norm(self, given: dict[str, tf.Tensor], total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        mean, variance = tf.nn.moments(total, -1, keepdims=True)
        inverse = tf.math.rsqrt(variance + given["numbers"][0])
        return (total - mean) * inverse, mean, inverse

    def dropped(self, given: dict[str, tf.Tensor], constants: dict[str, int], x: tf.Tensor) -> tf.Tensor:
        length = int(tf.get_static_value(given["sizes"])[1])
        if not constants["DROPOUT"]:
            return x
        return x * tf.reshape(self.factors(given, [x.shape[0] // length, length, x.shape[1]]), x.shape)

    def norm_forward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        added = self.dropped(given, constants, given["branch"] + given["offset"])
        normal, _, inverse = self.norm(given, given["x"] + added)
        return [normal * given["weight"] + given["bias"], normal, inverse]

    def norm_gradient(self, dy: tf.Tensor, normal: tf.Tensor, inverse: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        scaled = dy * weight
        means = [tf.reduce_mean(each, -1, keepdims=True) for each in (scaled, scaled * normal)]
        return inverse[:, None] * (scaled - means[0] - normal * means[1])

    def norm_backward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        dy, normal = given["dy"], given["normal"]
        dx = self.norm_gradient(dy, normal, given["inverse"], given["weight"])
        dbranch = self.dropped(given, constants, dx)
        sums = tf.stack([dy * normal, dy, dbranch], 1)
        return [dx, dbranch, tf.reduce_sum(tf.reshape(sums, [-1, constants["ROWS"], *sums.shape[1:]]), 1)]

    def residual_norm_forward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        total = given["x"]
        if constants["BRANCH"]:
            total += self.dropped(given, constants, given["branch"])
        normal, mean, inverse = self.norm(given, total)
        return [total if constants["BRANCH"] else None, normal * given["weight"], mean, inverse]

    def residual_norm_backward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        dy, normal = given["dy"], (given["total"] - given["mean"][:, None]) * given["inverse"][:, None]
        dx = given["dresidual"] + self.norm_gradient(dy, normal, given["inverse"], given["weight"])
        dbranch = self.dropped(given, constants, dx) if constants["DROPOUT"] else None
        sums = tf.reshape(dy * normal, [-1, constants["ROWS"], dy.shape[1]])
        return [dx, dbranch, tf.reduce_sum(sums, 1)]

    def gelu_backward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        dx = gelu_gradient(given["x"] + given["offset"], given["dy"], bool(constants["TANH"]))
        n, width = dx.shape
        taken = constants["ROWS"] * constants["TURNS"]
        padded = tf.pad(dx, [[0, -n % taken], [0, 0]])
        return [dx, tf.reduce_sum(tf.reshape(padded, [-1, taken, width]), 1)]

    def geglu_backward(self, given: dict[str, tf.Tensor], constants: dict[str, int]) -> list[tf.Tensor]:
        return [geglu_gradient(given["x"], given["dy"])]
