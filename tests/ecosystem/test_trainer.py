"""Hugging Face's Trainer finds mps by itself and fine-tunes a small BERT on sentence pairs."""

import math

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from .sentence_pairs import SentencePairs, train_tokenizer, write_csv

pytestmark = [pytest.mark.cuda_wheel, pytest.mark.usefixtures("mps", "no_fallback")]
STEPS_PER_EPOCH = 25


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """(tokenizer, training set, test set)"""
    folder = tmp_path_factory.mktemp("pairs")
    write_csv(folder / "train.csv", 16 * STEPS_PER_EPOCH, seed=0)
    write_csv(folder / "test.csv", 64, seed=1)
    tokenizer = train_tokenizer(folder / "train.csv")
    return tokenizer, SentencePairs(folder / "train.csv", tokenizer), SentencePairs(folder / "test.csv", tokenizer)


def make_trainer(task, folder, *, epochs=2, **options) -> Trainer:
    tokenizer, train, test = task
    torch.manual_seed(0)
    # No dropout: the devices draw different random numbers, and their losses are compared.
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        learning_rate=5e-4,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        seed=0,
        **options,
    )
    return Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=train,
        eval_dataset=test,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda p: {"accuracy": (p.predictions.argmax(-1) == p.label_ids).mean().item()},
    )


def evaluations(trainer: Trainer) -> list[float]:
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_fine_tunes_like_the_cpu(task, tmp_path, precision):
    options = {} if precision == "fp32" else {precision: True}
    trainer = make_trainer(task, tmp_path / "mps", **options)
    assert trainer.args.device.type == "mps"
    result = trainer.train()
    assert trainer.state.global_step == 2 * STEPS_PER_EPOCH
    assert next(trainer.model.parameters()).device.type == "mps"

    on_cpu = make_trainer(task, tmp_path / "cpu", use_cpu=True, **({} if precision == "fp16" else options))
    expected = on_cpu.train()
    assert result.training_loss == pytest.approx(expected.training_loss, rel=0.01)
    ours, theirs = evaluations(trainer), evaluations(on_cpu)
    assert len(ours) == 2 and all(math.isfinite(x) for x in ours)
    assert ours == pytest.approx(theirs, rel=0.01)


def test_resume_gives_the_same_loss(task, tmp_path):
    whole = make_trainer(task, tmp_path)
    whole.train()
    checkpoint = tmp_path / f"checkpoint-{STEPS_PER_EPOCH}"
    assert (checkpoint / "model.safetensors").exists()
    resumed = make_trainer(task, tmp_path)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == whole.state.global_step
    assert evaluations(resumed)[-1] == pytest.approx(evaluations(whole)[-1], rel=1e-5)


def test_learns_with_checkpointing_and_workers(task, tmp_path):
    trainer = make_trainer(
        task, tmp_path, epochs=3, gradient_checkpointing=True, dataloader_num_workers=2, gradient_accumulation_steps=2
    )
    trainer.train()
    losses = evaluations(trainer)
    assert losses[-1] < losses[0]


def test_trained_model_loads_again_on_the_device(task, tmp_path):
    trainer = make_trainer(task, tmp_path, epochs=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    batch = trainer.data_collator([task[2][i] for i in range(8)])
    batch = {name: tensor.to("mps") for name, tensor in batch.items()}
    with torch.no_grad():
        expected = trainer.model.eval()(**batch).logits
        for device_map in ("mps", "auto"):
            loaded = BertForSequenceClassification.from_pretrained(str(tmp_path / "final"), device_map=device_map)
            assert loaded.device == torch.device("mps:0")
            torch.testing.assert_close(loaded.eval()(**batch).logits, expected)


def test_a_callback_with_a_profiler_sees_the_devices_times(task, tmp_path):
    """As Hugging Face's guide has it: a TrainerCallback that steps torch.profiler."""

    class StepProfiler(TrainerCallback):
        def __init__(self, profiler):
            self.profiler = profiler

        def on_step_end(self, *_, **__):
            self.profiler.step()

    schedule = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1)
    tables = []
    trainer = make_trainer(task, tmp_path, epochs=1, max_steps=8)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=lambda p: tables.append(p.key_averages())) as p:
        trainer.add_callback(StepProfiler(p))
        trainer.train()
    [averages] = tables
    rows = {(e.key, e.device_type.name): e for e in averages}
    assert rows["ProfilerStep*", "CPU"].count == 2
    assert rows["aten::linear", "CPU"].device_time_total > 0
    assert rows["Optimizer.step#AdamW.step", "CPU"].device_time_total > 0
    assert "Self MPS" in averages.table(sort_by="self_device_time_total", row_limit=5)
