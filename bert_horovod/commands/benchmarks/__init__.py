"""What `bert-horovod bench` can measure: one module each, as a command is."""
