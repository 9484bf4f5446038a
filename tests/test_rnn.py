"""nn.LSTM, nn.GRU and nn.RNN against the CPU, without a fallback."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
OPTIONS = [
    {},
    {"batch_first": True, "num_layers": 2},
    {"bidirectional": True, "num_layers": 2},
    {"bias": False},
]


def pair(kind, **options):
    torch.manual_seed(0)
    module = kind(4, 5, **options)
    ours = kind(4, 5, **options).to("mps")
    ours.load_state_dict(module.state_dict())
    return module, ours


def tensors(result):
    output, state = result
    return [output, *(state if isinstance(state, tuple) else [state])]


def check(theirs, ours, run):
    expected, actual = run(theirs), run(ours)
    for e, a in zip(expected, actual):
        torch.testing.assert_close(a.detach().cpu(), e.detach(), **TOLERANCE)
    sum(t.square().sum() for t in expected).backward()
    sum(t.square().sum() for t in actual).backward()
    for e, a in zip(theirs.parameters(), ours.parameters()):
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_padded_and_packed(kind, options, mps, no_fallback):
    theirs, ours = pair(kind, **options)
    x = torch.randn(3, 7, 4) if options.get("batch_first") else torch.randn(7, 3, 4)

    def device_of(module):
        return next(module.parameters()).device

    def padded(module):
        return tensors(module(x.to(device_of(module))))

    def packed(module):
        sequence = pack_padded_sequence(x.to(device_of(module)), [7, 4, 2], options.get("batch_first", False))
        output, state = module(sequence)
        return tensors((pad_packed_sequence(output)[0], state))

    check(theirs, ours, padded)
    theirs.zero_grad()
    ours.zero_grad()
    check(theirs, ours, packed)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_given_states_and_input_gradients(kind, mps, no_fallback):
    theirs, ours = pair(kind, num_layers=2)
    leaves = {"cpu": torch.randn(7, 3, 4), "states": torch.randn(2, 2, 3, 5)}
    results = []
    for module, device in ((theirs, "cpu"), (ours, mps)):
        x, states = (t.to(device).requires_grad_() for t in leaves.values())
        state = (states[0], states[1]) if kind is torch.nn.LSTM else states[0]
        output, _ = module(x, state)
        results.append(torch.autograd.grad(output.square().sum(), (x, states)))
    for e, a in zip(*results):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-3, atol=1e-4)


def test_projection_and_cells(mps, no_fallback):
    theirs, ours = pair(torch.nn.LSTM, proj_size=3)
    check(theirs, ours, lambda m: tensors(m(torch.ones(5, 2, 4, device=next(m.parameters()).device))))
    for kind in (torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell):
        theirs, ours = pair(kind)

        def step(module):
            result = module(torch.ones(2, 4, device=next(module.parameters()).device))
            return result if isinstance(result, tuple) else [result]

        check(theirs, ours, step)


def test_dropout_between_layers(mps, no_fallback):
    """The masks differ from the CPU's; with everything dropped the second layer sees zeros on both."""
    _, ours = pair(torch.nn.LSTM, num_layers=2, dropout=0.5)
    x = torch.randn(7, 3, 4, device=mps)
    assert not torch.equal(ours(x)[0], ours(x)[0])
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype, mps, no_fallback):
    theirs, ours = pair(torch.nn.GRU)
    x = torch.randn(7, 3, 4)
    expected, _ = theirs(x)
    actual, _ = ours.to(dtype)(x.to(mps, dtype))
    torch.testing.assert_close(actual.float().cpu(), expected, rtol=5e-2, atol=5e-2)
