"""Let a checkpoint guess the words at [MASK].

bert-horovod fill-mask --checkpoint RUN "Paris is the [MASK] of France."
"""

import argparse

from bert_horovod.commands.shared.flags import whole_text
from bert_horovod.commands.shared.opened_flags import add_checkpoint

_GUESSES = 5  # of each [MASK]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_checkpoint(parser)
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="a sentence with one or more [MASK], or its tokenizer's mask token"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the guesses."""
    from bert_horovod.inference.masked_tokens import MaskedTokenPredictor

    texts = list(map(whole_text, arguments.texts))
    predictor = arguments.checkpoint.whole(MaskedTokenPredictor)
    for text, places in zip(texts, predictor.guess(texts, _GUESSES), strict=True):
        print(text)
        for guesses in places:
            print("    " + "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses))
