"""Sentence Transformers: embeddings of a small BERT, and training of it, on mps by themselves."""

import pytest
import torch

from . import agree, library

sentence_transformers, transformers = library("sentence_transformers"), library("transformers")
tokenizers, datasets = library("tokenizers"), library("datasets")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")
SENTENCES = ["the cat sleeps", "a black dog runs in the garden", "the dog", "white house"]


@pytest.fixture
def folder(tmp_path):
    """A small BERT and its tokenizer, saved."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    ).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    return str(tmp_path)


def load(folder, device):
    parts = library("sentence_transformers.models")
    transformer = parts.Transformer(folder)
    pooling = parts.Pooling(32)
    return sentence_transformers.SentenceTransformer(modules=[transformer, pooling], device=device)


def test_encodes(folder):
    assert load(folder, None).device.type == "mps"
    agree(lambda device: load(folder, device).encode(SENTENCES, normalize_embeddings=True, batch_size=3))


def test_trains(folder, tmp_path):
    pairs = datasets.Dataset.from_dict({"anchor": SENTENCES * 2, "positive": SENTENCES[::-1] * 2})

    def run(device):
        model = load(folder, device)
        arguments = sentence_transformers.SentenceTransformerTrainingArguments(
            str(tmp_path / "out"),
            max_steps=4,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=device.type == "cpu",
        )
        loss = library("sentence_transformers.losses").MultipleNegativesRankingLoss(model)
        trainer = sentence_transformers.SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    agree(run)
