"""What every flag that takes a checkpoint says of it; imports nothing, so that --help is quick."""

CHECKPOINT = (
    "a Hugging Face BERT directory, a TF1 checkpoint of Google's (its prefix or directory), or a run's output_dir (its "
    "newest checkpoint)"
)
