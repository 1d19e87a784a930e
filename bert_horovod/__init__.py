"""BERT pre-training for labs with an ordinary cluster, with TensorFlow and Horovod."""

__version__ = "0.1.0"
