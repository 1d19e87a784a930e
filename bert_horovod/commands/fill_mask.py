"""Let a checkpoint guess the words at [MASK].

bert-horovod fill-mask --checkpoint RUN "Paris is the [MASK] of France."
"""

import argparse

from bert_horovod.commands.shared.flags import require_least, whole_text
from bert_horovod.commands.shared.opened_flags import add_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_checkpoint(parser)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses per [MASK] (default: %(default)s)")
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="a sentence with one or more [MASK], or its tokenizer's mask token"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the guesses."""
    require_least("--top", arguments.top)
    from bert_horovod.inference.masked_tokens import MaskedTokenPredictor

    texts = list(map(whole_text, arguments.texts))
    predictor = arguments.checkpoint.whole(MaskedTokenPredictor)
    for text, places in zip(texts, predictor.guess(texts, arguments.top), strict=True):
        print(text)
        for guesses in places:
            print("    " + "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses))
