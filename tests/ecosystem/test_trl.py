"""TRL's trainers of language models, supervised and by preference, on mps by themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    agree(lambda device: losses(method, tmp_path, device.type))


LAUNCHED = "import sys; from ecosystem.test_trl import report_losses; report_losses(*sys.argv[1:])"


def test_two_processes_train_as_one(tmp_path):
    """SFT with half the batch in each of two processes."""
    script = tmp_path / "sft.py"
    script.write_text(LAUNCHED)
    together = launched(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, 2)
    alone = launched(tmp_path, script, 4)
    assert [found["processes"] for found in (together, alone)] == [2, 1]
    torch.testing.assert_close(together["losses"], alone["losses"], rtol=1e-3, atol=1e-3)


def launched(folder, *command):
    """What rank 0 reports of a training with this command."""
    variables = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    paths = [str(Path(__file__).parents[1]), variables.get("PYTHONPATH", "")]
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    arguments = [sys.executable, *map(str, command), str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=variables, timeout=400)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"losses"')]
    assert done.returncode == 0 and len(lines) == 1, done.stdout + done.stderr
    return json.loads(lines[0])


def report_losses(batch, folder):
    """In a process of a launcher."""
    found = losses("SFT", folder, "mps", int(batch))
    if int(os.environ.get("RANK", 0)) == 0:
        print("\n" + json.dumps({"losses": found, "processes": int(os.environ.get("WORLD_SIZE", 1))}), flush=True)


def losses(method, folder, device, batch=4):
    transformers.set_seed(0)
    options = {"learning_rate": 5e-3, "max_steps": 5, "per_device_train_batch_size": batch, "logging_steps": 1}
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "bf16": False}
    config = getattr(trl, method + "Config")(folder, **options, **quiet, use_cpu=device == "cpu")
    # The reference of DPO would be loaded by the name of the model, and a model from a configuration has none.
    models = {"model": gpt2(), **({"ref_model": gpt2()} if method == "DPO" else {})}
    rows = datasets.Dataset.from_dict(ROWS[method])
    trainer = getattr(trl, method + "Trainer")(**models, args=config, train_dataset=rows, processing_class=tokenizer())
    trainer.train()
    assert trainer.model.device.type == device
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
