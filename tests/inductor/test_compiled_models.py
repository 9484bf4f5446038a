"""Small networks trained three steps: compiled on mps, not compiled on mps, and on the CPU the losses agree."""

import copy

import pytest
import torch
import torch.nn.functional as F
from compiled import kernel_count
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code

pytestmark = pytest.mark.usefixtures("mps")


@pytest.fixture(autouse=True)
def fresh_compiler():
    with fresh_cache():
        yield


def train(model, batches, device, compiled, autocast=None, **options) -> list[float]:
    """Losses of a copy of model, whose results are the loss, trained with Adam on a batch a step."""
    model = copy.deepcopy(model).to(device).train()
    call = torch.compile(model, **options) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            loss = call(*(t.to(device) for t in batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check(model, batches, tolerance=2e-3, **options):
    compiled, codes = run_and_get_code(lambda: train(model, batches, "mps", True, **options))
    assert kernel_count(codes) > 0
    autocast = options.get("autocast")
    for device in ("mps", "cpu"):
        expected = train(model, batches, device, False, autocast=autocast)
        assert compiled == pytest.approx(expected, rel=tolerance), device
    assert len({round(loss, 5) for loss in compiled}) == len(compiled)  # it learns


class WithLoss(nn.Module):
    """Cross-entropy of a model's logits, classes last."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return F.cross_entropy(self.model(x).flatten(0, -2).float(), y.flatten())


def labelled(*shape, classes=3):
    """A batch of numbers, with a label for each row."""
    return torch.randn(*shape), torch.randint(0, classes, shape[:-1])


def mlp():
    return WithLoss(nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.0), nn.Linear(32, 3)))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_mlp(mode):
    check(mlp(), [labelled(10, 12)] * 4, fullgraph=True, mode=mode)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, mode):
    check(mlp(), [labelled(16, 12)] * 4, tolerance=2e-2, autocast=dtype, mode=mode)


class Attention(nn.Module):
    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


def test_transformer_block_with_a_free_batch():
    model = WithLoss(nn.Sequential(Attention(16, 2), nn.Linear(16, 3)))
    batches = [labelled(batch, 6, 16) for batch in (4, 3, 7)]
    counters.clear()
    check(model, batches, dynamic=True)
    assert counters["stats"]["unique_graphs"] == 1


def test_encoder_layer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    check(WithLoss(nn.Sequential(layer, nn.Linear(16, 3))), [labelled(4, 6, 16)] * 3)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, stride=2, bias=False), nn.BatchNorm2d(12), nn.Hardswish(),
        )  # fmt: skip
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def test_convolutions_with_batch_norm(all_bits_of_f32):
    model = WithLoss(Images())
    batches = [(torch.randn(6, 3, 12, 12), torch.randint(0, 3, (6,))) for _ in range(3)]
    check(model, batches, tolerance=5e-3)


def test_batch_norm_in_evaluation(all_bits_of_f32):
    model = Images().to("mps").eval()
    x = torch.randn(2, 3, 12, 12, device="mps")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-4, atol=1e-5)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


def test_lstm():
    batch = torch.randint(0, 20, (4, 5)), torch.randint(0, 3, (4, 5))
    check(WithLoss(Sequence()), [batch] * 3)


def tokens(batch=2, length=10, vocabulary=64):
    return torch.randint(0, vocabulary, (batch, length))


class LanguageModel(nn.Module):
    """The loss of a model of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels):
        return self.model(input_ids=ids, labels=labels).loss


def gpt2(**more):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, **more))


def test_gpt2():
    ids = tokens()
    check(LanguageModel(gpt2()), [(ids, ids)] * 3)


def test_bert():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "vocab_size": 64}
    model = BertForSequenceClassification(BertConfig(**sizes, **off))
    # Adam takes steps of one size whatever a gradient is: those that are rounding errors go either way.
    check(LanguageModel(model), [(tokens(4), torch.tensor([0, 1, 1, 0]))] * 3, tolerance=1e-2)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, **more, bos_token_id=1, eos_token_id=63)).eval()


def test_generate_with_a_static_cache():
    model = llama().to("mps")
    ids = tokens(2, 5).clamp_min(2).to("mps")
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static", "min_new_tokens": 8}

    def generate():
        return model.generate(ids, attention_mask=torch.ones_like(ids), disable_compile=True, **options)

    expected = generate()
    model.forward = torch.compile(model.forward)
    actual, codes = run_and_get_code(generate)
    assert kernel_count(codes) > 0 and actual.shape == (2, 13)
    assert actual.tolist() == expected.tolist()


def test_generate_compiles_by_itself():
    """As transformers does on CUDA; on mps it has to be told. Its mode is "reduce-overhead", its stops are late."""
    from transformers import CompileConfig

    model = llama().to("mps")
    ids = tokens(2, 5).clamp_min(2).to("mps")
    everywhere = CompileConfig()
    everywhere._compile_all_devices = True

    def generate(**options):
        torch.manual_seed(0)
        mask = torch.ones_like(ids)
        return model.generate(
            ids, attention_mask=mask, max_new_tokens=12, cache_implementation="static", **options
        ).tolist()

    for sampled in (False, True):
        compiled, codes = run_and_get_code(generate, do_sample=sampled, compile_config=everywhere)
        assert compiled == generate(do_sample=sampled)
        assert sampled or kernel_count(codes) > 0


def test_dropout_keeps_its_share_and_one_mask_for_both_directions():
    x = torch.full((400, 500), 3.0, device="mps", requires_grad=True)
    function = torch.compile(lambda x: F.dropout(x * 2, 0.3).sin())
    seen = []
    for _ in range(2):
        x.grad = None
        y = function(x)
        y.sum().backward()
        kept = y.detach() != 0
        torch.testing.assert_close(kept.float().mean().item(), 0.7, rtol=0, atol=0.01)
        scaled = torch.tensor(6.0 / 0.7)
        torch.testing.assert_close(y.detach()[kept].unique().cpu(), scaled.sin()[None], rtol=1e-4, atol=1e-5)
        assert torch.equal(x.grad != 0, kept)
        seen.append(kept)
    assert not torch.equal(*seen)
    torch.manual_seed(1)
    first = function(x)
    torch.manual_seed(1)
    assert torch.equal(function(x), first)


def test_trainer(tmp_path):
    from transformers import Trainer, TrainingArguments

    ids = tokens(8)
    data = [{"input_ids": row, "labels": row} for row in ids]
    model = gpt2()

    def loss(compiled):
        arguments = TrainingArguments(
            output_dir=str(tmp_path / str(compiled)), max_steps=2, per_device_train_batch_size=4, report_to=[],
            save_strategy="no", disable_tqdm=True, torch_compile=compiled, seed=3, learning_rate=1e-2,
        )  # fmt: skip
        trainer = Trainer(model=copy.deepcopy(model), args=arguments, train_dataset=data)
        result = trainer.train().training_loss
        assert trainer.args.device.type == "mps"
        return result

    found, codes = run_and_get_code(loss, True)
    assert kernel_count(codes) > 0
    assert found == pytest.approx(loss(False), rel=2e-3)


def test_lightning(tmp_path):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, compiled):
            super().__init__()
            torch.manual_seed(0)
            self.model, self.losses = mlp(), []
            if compiled:
                self.model.compile()

        def training_step(self, batch, index):
            loss = self.model(*batch)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x, y = labelled(12, 12)

    def losses(compiled):
        module = Module(compiled)
        trainer = lightning.Trainer(
            accelerator="mps", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=6))
        return module.losses

    found, codes = run_and_get_code(losses, True)
    assert kernel_count(codes) > 0 and len(found) == 2
    assert found == pytest.approx(losses(False), rel=2e-3)
