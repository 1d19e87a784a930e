"""The help text of every flag that takes a checkpoint; this module imports nothing, so that --help is quick."""

CHECKPOINT = (
    "a Hugging Face directory of BERT or ALBERT, a TF1 checkpoint of Google's (its prefix or directory), or a run's "
    "output_dir (its newest checkpoint)"
)
