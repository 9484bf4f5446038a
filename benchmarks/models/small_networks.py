"""Training steps, in ms, of networks that a software driver can train: the digits network of examples/, and BERT-tiny.

`--profile` prints the kernels of one step on mps instead.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "examples")]
import peer  # noqa: E402


def digits(device: str):
    """64 images of 8 x 8."""
    import torch
    from digits import DigitNet

    images, labels = torch.rand(64, 1, 8, 8).to(device), torch.randint(0, 10, (64,)).to(device)
    model = DigitNet().to(device)
    return model, lambda: torch.nn.functional.cross_entropy(model(images), labels)


def bert_tiny(device: str):
    """BERT of 2 layers of 128 with 2 heads, classifying 16 sentences of 64 tokens."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    model = BertForSequenceClassification(config).to(device)
    tokens, labels = torch.randint(0, 30000, (16, 64)).to(device), torch.randint(0, 2, (16,)).to(device)
    return model, lambda: model(input_ids=tokens, labels=labels).loss


NETWORKS = {"digits": digits, "BERT-tiny": bert_tiny}


def training_step(name: str, device: str):
    """A function that trains the network one step with Adam and reads the loss."""
    import torch

    torch.manual_seed(0)
    model, loss_of = NETWORKS[name](device)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def measure(device: str) -> dict[str, float]:
    steps = {name: training_step(name, device) for name in NETWORKS}
    return {name: peer.median_seconds(step, device, repeats=21) * 1e3 for name, step in steps.items()}


def profile() -> None:
    import torch_anymps

    for name in NETWORKS:
        step = training_step(name, "mps")
        step()
        step()
        with torch_anymps.profile() as taken:
            step()
        print(f"{name}\n{taken.table(25)}\n")


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile()
    else:
        peer.run(measure, "ms", "Training steps of small networks")
