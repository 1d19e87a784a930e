"""The benchmarks of `bert-horovod bench`: each is a module, as each command is."""
