"""python -m tests.exchange.early_update CLIPPING: whether a bucket's update happens before the next bucket's sum.

Prints yes or no. It is a program, because it needs threads that the tests' process does not have.
"""

import sys
import time

import numpy as np
import tensorflow as tf

from bert_horovod.measuring.synthetic import LoneRank
from tests.exchange.moments import BUCKETS, Toy, parameters
from tests.toys import toy_recipe

PATIENCE_S = 10  # for an update that must not wait; the answer is "no" after it


class SlowSum(LoneRank):
    """A rank whose second bucket's sum waits until a parameter of the first has changed."""

    def __init__(self) -> None:
        super().__init__(2)
        self.changed = False
        self.toy: Toy | None = None

    def all_reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        if name != "gradients.1":
            return tensor

        def wait(values: np.ndarray) -> np.ndarray:
            name, end = BUCKETS[0][-1], time.monotonic() + PATIENCE_S
            while not self.changed and time.monotonic() < end:
                time.sleep(0.02)
                self.changed = not np.array_equal(self.toy.state.parameters[name].numpy(), parameters()[name])
            return values

        return tf.ensure_shape(tf.numpy_function(wait, [tensor], tensor.dtype), tensor.shape)


def main() -> None:
    """Do one step."""
    tf.config.threading.set_inter_op_parallelism_threads(4)
    world = SlowSum()
    optimizer = {"name": "sgd", "max_grad_norm": 8.0, "clipping": sys.argv[1]}
    world.toy = Toy(world, toy_recipe(optimizer=optimizer))
    world.toy.step(1)
    print("yes" if world.changed else "no")


if __name__ == "__main__":
    main()
