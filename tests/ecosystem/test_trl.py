"""TRL's trainers of language models, supervised and by preference, on mps by themselves."""

import pytest
import torch

from . import agree, library

trl, transformers = library("trl"), library("transformers")
datasets, tokenizers = library("datasets"), library("tokenizers")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


def tokenizer():
    words = "the a cat dog sleeps runs in garden house black white"
    numbers = {word: i for i, word in enumerate(["[PAD]", "[EOS]", "[UNK]", *words.split()])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    )


def gpt2():
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=1, pad_token_id=0)
    )


ROWS = {
    "SFT": {"text": ["the cat sleeps in the garden", "a black dog runs"] * 8},
    "DPO": {
        "prompt": ["the cat", "a black dog"] * 8,
        "chosen": [" sleeps in the garden", " runs"] * 8,
        "rejected": [" runs", " sleeps in the white house"] * 8,
    },
}


@pytest.mark.parametrize("method", ROWS)
def test_trains(method, tmp_path):
    def run(device):
        transformers.set_seed(0)
        options = {"learning_rate": 5e-3, "max_steps": 5, "per_device_train_batch_size": 4, "logging_steps": 1}
        quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "bf16": False}
        config = getattr(trl, method + "Config")(tmp_path, **options, **quiet, use_cpu=device.type == "cpu")
        # The reference of DPO would be loaded by the name of the model, and a model from a configuration has none.
        models = {"model": gpt2(), **({"ref_model": gpt2()} if method == "DPO" else {})}
        rows = datasets.Dataset.from_dict(ROWS[method])
        trainer = getattr(trl, method + "Trainer")(
            **models, args=config, train_dataset=rows, processing_class=tokenizer()
        )
        trainer.train()
        assert trainer.model.device.type == device.type
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    agree(run)
