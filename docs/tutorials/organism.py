"""Makes an organism up, of genes, repeats and what is between them, and scores a model of its letters.

    python organism.py make 5_000_000      writes organism.fa, held_out.fa (another chromosome) and pairs.csv
    python organism.py score RUN/model     the loss at masked letters of held_out.fa, beside Markov models' of this text

Genes are codons of a fixed usage, on both strands; repeats are copies of 20 elements, of which 5 % of the letters
changed, in lower case. In a pair, the right sequence is of held_out.fa, and the wrong one has another letter within.
"""

import csv
import math
import random
import sys
from collections import Counter

ACIDS, SHARES = "LAGVESIKRDTPNQFYMHWC", (10, 9, 7, 7, 6, 6, 6, 5, 6, 5, 5, 4, 4, 4, 4, 3, 2, 2, 1, 1)
CODE = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"  # of TTT, TTC, TTA, TTG, TCT, ...
CHROMOSOME, ROW, PAIR, PAIRS = 300_000, 510, 64, 100


def make(letters: int) -> None:
    """Write the files."""
    draw = random.Random(0)
    usage: dict[str, dict[str, float]] = {}
    for number, acid in enumerate(CODE):
        codon = "TCAG"[number // 16] + "TCAG"[number // 4 % 4] + "TCAG"[number % 4]
        usage.setdefault(acid, {})[codon] = draw.random() ** 6

    def between(least: int, most: int) -> str:
        return "".join(draw.choices("ACGT", (3, 2, 2, 3), k=draw.randint(least, most)))

    def gene() -> str:
        acids = draw.choices(ACIDS, SHARES, k=draw.randint(100, 600))
        text = "ATG" + "".join(draw.choices(*zip(*usage[acid].items(), strict=True))[0] for acid in acids) + "TAA"
        return text if draw.random() < 0.5 else text[::-1].translate(str.maketrans("ACGT", "TGCA"))

    elements = [between(300, 1200) for _ in range(20)]

    def repeat() -> str:
        return "".join(draw.choice("ACGT") if draw.random() < 0.05 else each for each in draw.choice(elements)).lower()

    for name, count in (("organism.fa", -(-letters // CHROMOSOME)), ("held_out.fa", 1)):
        with open(name, "w", encoding="ascii") as file:
            for number in range(1, count + 1):
                text = ""
                while len(text) < min(CHROMOSOME, letters):
                    text += draw.choices((gene, lambda: between(20, 300), repeat), (9, 6, 2))[0]()
                lines = (text[begin : begin + 60] for begin in range(0, len(text), 60))
                file.write(f">chromosome {number} of {name}\n" + "\n".join(lines) + "\n")
    with open("pairs.csv", "w", encoding="ascii", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("sentence_good", "sentence_bad"))
        for _ in range(PAIRS):  # `text` is that of held_out.fa
            begin, place = draw.randrange(len(text) - PAIR), draw.randrange(PAIR // 4, 3 * PAIR // 4)
            right = text[begin : begin + PAIR].upper()
            other = draw.choice("ACGT".replace(right[place], ""))
            writer.writerow((right, right[:place] + other + right[place + 1 :]))


def markov(text: str, order: int) -> float:
    """Nats a letter of a Markov model of this order whose frequencies are those of the very text."""
    longer = Counter(text[place : place + order + 1] for place in range(len(text) - order))
    contexts = Counter(text[place : place + order] for place in range(len(text) - order))
    return -sum(n * math.log(n / contexts[each[:order]]) for each, n in longer.items()) / (len(text) - order)


def score(checkpoint: str) -> None:
    """Print losses in nats a letter; 15 % of the letters are masked, and all of them by [MASK]."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    with open("held_out.fa", encoding="ascii") as file:
        text = "".join(line.strip() for line in file if line[0] != ">").upper()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    torch.manual_seed(0)
    losses = []
    for begin in range(0, len(text) - ROW, 8 * ROW):
        rows = tokenizer([text[at : at + ROW] for at in range(begin, min(begin + 8 * ROW, len(text) - ROW), ROW)])
        labels = torch.tensor(rows["input_ids"])
        masked = (torch.rand(labels.shape) < 0.15) & (labels > tokenizer.mask_token_id)
        with torch.no_grad():
            logits = model(torch.where(masked, tokenizer.mask_token_id, labels)).logits
        losses.append(torch.nn.functional.cross_entropy(logits[masked], labels[masked], reduction="none"))
    found = torch.cat(losses)
    error = found.std() / len(found) ** 0.5
    print(f"masked letters {found.mean():.4f} (of {len(found):,}, standard error {error:.4f})")
    print("Markov models  " + ", ".join(f"order {order}: {markov(text, order):.4f}" for order in (0, 3, 5)))


if __name__ == "__main__":
    make(int(sys.argv[2])) if sys.argv[1] == "make" else score(sys.argv[2])
