"""The device of this process; the only place that asks TensorFlow for one."""

import os

import tensorflow as tf

from bert_horovod.errors import UserError


def use_devices(world: World, threads: int) -> None:
    """Give this rank its GPU, or its share of the host's cores; once, before TensorFlow touches a device."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if world.local_rank >= len(gpus):
            raise UserError(f"{world.local_size} ranks on this host but {len(gpus)} GPUs: start one rank per GPU")
        tf.config.set_visible_devices(gpus[world.local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[world.local_rank], True)
        return
    cores = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(threads or max(1, cores // world.local_size))
    tf.config.threading.set_inter_op_parallelism_threads(2)
