"""A small text classification task: pairs of sentences in a CSV, 1 where the second says the same as the first and 0
where it says the opposite."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import PreTrainedTokenizerFast

ANIMALS = ("cat", "dog", "horse", "rabbit", "sparrow", "squirrel", "hedgehog", "salamander")
COLOURS = ("black", "white", "brown", "grey", "spotted")
PLACES = ("garden", "kitchen", "forest", "meadow", "library")
FIRST = ("the {colour} {animal} sleeps in the {place}", "in the {place} there sleeps a {colour} {animal}")
SAME = ("a {animal} is sleeping in the {place}", "the {place} is where the {animal} sleeps")
OPPOSITE = ("a {animal} is awake in the {place}", "no {animal} ever sleeps in the {place}")


def write_csv(path: Path, rows: int, seed: int) -> None:
    """Writes rows with the columns sentence1, sentence2, label."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sentence1", "sentence2", "label"])
        for _ in range(rows):
            label = draw.randrange(2)
            words = {"animal": draw.choice(ANIMALS), "colour": draw.choice(COLOURS), "place": draw.choice(PLACES)}
            second = draw.choice(SAME if label else OPPOSITE)
            table.writerow([draw.choice(FIRST).format(**words), second.format(**words), label])


def train_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer with BERT's special tokens, trained on the sentences of a CSV."""
    with path.open(newline="") as file:
        text = [row[column] for row in csv.DictReader(file) for column in ("sentence1", "sentence2")]
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(text, vocab_size=200, min_frequency=1, show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
    )


class SentencePairs(torch.utils.data.Dataset):
    """The rows of a CSV as token ids; a collator pads them."""

    def __init__(self, path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        with path.open(newline="") as file:
            self.rows = list(csv.DictReader(file))
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        row = self.rows[index]
        return {**self.tokenizer(row["sentence1"], row["sentence2"]), "label": int(row["label"])}
