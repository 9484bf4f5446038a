"""trainer.py FOLDER BATCH: five steps of Hugging Face's Trainer, BATCH rows a process. Prints a line of JSON."""

import sys

import torch
from report import report
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
ids = torch.randint(60, (20, 8), generator=torch.Generator().manual_seed(1))
rows = [{"input_ids": row, "labels": row} for row in ids]
config = GPT2Config(
    vocab_size=60, n_positions=8, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=int(sys.argv[2]),
    max_steps=5,
    logging_steps=1,
    save_strategy="no",
    optim="sgd",
    learning_rate=0.1,
    report_to=[],
    disable_tqdm=True,
    seed=3,
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows)
trainer.train()
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
result = {"losses": losses, "processes": arguments.world_size}
report(arguments.process_index, **result)
