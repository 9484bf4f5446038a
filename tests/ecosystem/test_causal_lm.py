"""GPT-2 and Llama made from their configurations: training steps like the CPU's, greedy text equal to the CPU's."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

pytestmark = [pytest.mark.cuda_wheel, pytest.mark.usefixtures("mps", "no_fallback")]
VOCABULARY = 128


def gpt2():
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config)


def llama():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(params=[gpt2, llama], ids=["gpt2", "llama"])
def model(request):
    torch.manual_seed(0)
    return request.param()


def text(batch: int, length: int) -> torch.Tensor:
    """Token ids that can be learnt: each follows from the one before."""
    ids = [torch.randint(1, VOCABULARY, (batch,))]
    for _ in range(length - 1):
        ids.append((ids[-1] * 5 + 3) % (VOCABULARY - 1) + 1)
    return torch.stack(ids, 1)


def train(model, ids, steps):
    device = model.device
    ids = ids.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_steps_match_the_cpu(model):
    ids = text(4, 24)
    expected = train(copy.deepcopy(model), ids, 20)
    losses = train(model.to("mps"), ids, 20)
    assert losses == pytest.approx(expected, rel=2e-3)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_text_equals_the_cpus(model, attention):
    # A trained net has clear favourites: rounding does not change the greedy choice.
    train(model, text(8, 24), 30)
    model.eval()
    model.set_attn_implementation(attention)
    prompt = text(3, 6)
    padding = torch.ones_like(prompt)
    padding[0, :2] = 0  # left padding, as batched generation has it
    options = {"max_new_tokens": 20, "do_sample": False, "use_cache": True}
    expected = model.generate(prompt, attention_mask=padding, **options)
    on_mps = model.to("mps").generate(prompt.to("mps"), attention_mask=padding.to("mps"), **options)
    assert on_mps.device.type == "mps"
    assert torch.equal(on_mps.cpu(), expected)


def test_the_cache_changes_nothing(model):
    model = model.to("mps").eval()
    prompt = text(2, 5).to("mps")
    options = {"max_new_tokens": 8, "do_sample": False}
    cached = model.generate(prompt, use_cache=True, **options)
    assert torch.equal(cached, model.generate(prompt, use_cache=False, **options))


def test_sampling_repeats_with_the_seed(model):
    model = model.to("mps").eval()
    prompt = text(2, 5).to("mps")
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.generate(prompt, max_new_tokens=12, do_sample=True, top_k=20, top_p=0.9).cpu())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
