"""PEFT's adapters on a small Llama: training, merging into the weights, and saving."""

import pytest
import torch

from . import agree, library, train

peft, transformers = library("peft"), library("transformers")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


ADAPTERS = {
    "lora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj", "down_proj"]),
    "dora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], use_dora=True),
    "ia3": lambda: peft.IA3Config(task_type="CAUSAL_LM"),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_trains(adapter):
    model, ids = peft.get_peft_model(llama(), ADAPTERS[adapter]()), torch.randint(0, 64, (4, 12))

    def loss_of(model):
        on_device = ids.to(model.device)
        return model(input_ids=on_device, labels=on_device).loss

    agree(lambda device: train(model, loss_of, device, optimizer=torch.optim.AdamW, lr=0.01))


def test_merges_and_loads_again(mps, tmp_path):
    model = peft.get_peft_model(llama(), ADAPTERS["lora"]()).to(mps)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zeros at first: the adapter would do nothing
            torch.nn.init.normal_(parameter)
    ids = torch.randint(0, 64, (2, 9), device=mps)
    expected = model(ids).logits
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(llama().to(mps), tmp_path)
    torch.testing.assert_close(loaded(ids).logits, expected)
    torch.testing.assert_close(model.merge_and_unload()(ids).logits, expected, rtol=1e-4, atol=1e-4)
