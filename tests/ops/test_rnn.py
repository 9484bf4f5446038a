"""nn.LSTM, nn.GRU, nn.RNN and their cells against the CPU, without a fallback."""

import pytest
import torch
from compare import RECURRENT as TOLERANCE
from compare import close
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

KINDS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]
OPTIONS = [
    {},
    {"batch_first": True, "num_layers": 2},
    {"bidirectional": True, "num_layers": 2},
    {"bias": False},
]
CASES = [(kind, options) for kind in KINDS for options in OPTIONS]
CASES += [(torch.nn.RNN, {"nonlinearity": "relu", "bidirectional": True})]
CASES += [(torch.nn.LSTM, {"proj_size": 3}), (torch.nn.LSTM, {"proj_size": 3, "bidirectional": True, "num_layers": 2})]
RAGGED = [7, 4, 2]


def pair(kind, *sizes, dtype=torch.float32, **options):
    """A module of the CPU, in float32, and the same on mps."""
    torch.manual_seed(0)
    module = kind(*(sizes or (4, 5)), **options)
    ours = kind(*(sizes or (4, 5)), **options).to("mps")
    ours.load_state_dict(module.state_dict())
    return module, ours.to(dtype)


def tensors(result):
    output, state = result
    return [output, *(state if isinstance(state, tuple) else [state])]


def assert_close(actual, expected, tolerance=1e-4):
    for a, e in zip(actual, expected, strict=True):
        close(a, e, tolerance, a.dtype, scaled=True)


def leaves_of(module, shape, seed=1):
    """An input [steps, batch, features] or with batch_first, and states that are given."""
    torch.manual_seed(seed)
    weight = next(module.parameters())
    steps, batch = shape
    x = torch.randn((batch, steps) if module.batch_first else (steps, batch)).unsqueeze(-1)
    x = x * torch.randn(module.input_size)
    of_layers = module.num_layers * (2 if module.bidirectional else 1)
    states = [torch.randn(of_layers, batch, getattr(module, "proj_size", 0) or module.hidden_size)]
    if module.mode == "LSTM":
        states.append(torch.randn(of_layers, batch, module.hidden_size))
    return [t.to(weight.device, weight.dtype).requires_grad_() for t in (x, *states)]


def run(module, x, *states, lengths=None):
    state = (states if len(states) > 1 else states[0]) if states else None
    if lengths is None:
        return tensors(module(x, state))
    output, last = module(pack_padded_sequence(x, lengths, module.batch_first), state)
    return tensors((output.data, last))


def gradients(module, outputs, leaves, **options):
    torch.manual_seed(2)
    loss = sum((t.float() * torch.randn(t.shape).to(t.device)).sum() for t in outputs)
    return torch.autograd.grad(loss, [*leaves, *module.parameters()], **options)


def check(theirs, ours, shape=(7, 3), lengths=None, tolerance=1e-4):
    """Results and the gradients of inputs, states and weights."""
    results = []
    for module in (theirs, ours):
        leaves = leaves_of(module, shape)
        outputs = run(module, *leaves, lengths=lengths)
        results.append([*outputs, *gradients(module, outputs, leaves)])
    assert_close(results[1], results[0], tolerance)


@pytest.mark.parametrize("lengths", [None, RAGGED])
@pytest.mark.parametrize("kind, options", CASES)
def test_padded_and_packed(kind, options, lengths, mps, no_fallback):
    check(*pair(kind, **options), lengths=lengths)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sizes, shape",
    [((3, 33), (5, 37)), ((40, 130), (3, 70)), ((1, 1), (4, 1)), ((8, 64), (1, 32)), ((70, 17), (9, 2))],
)
def test_sizes_beyond_tiles(kind, sizes, shape, mps, no_fallback):
    check(*pair(kind, *sizes, bidirectional=True), shape=shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("lengths", [None, RAGGED])
@pytest.mark.parametrize("kind", KINDS)
def test_low_precision(kind, lengths, dtype, mps, no_fallback):
    check(*pair(kind, dtype=dtype), lengths=lengths, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_zeros_where_none_are_given(kind, mps, no_fallback):
    theirs, ours = pair(kind, num_layers=2)
    x = torch.randn(7, 3, 4)
    assert_close(run(ours, x.to(mps)), run(theirs, x))
    sequence = pack_padded_sequence(x.to(mps), RAGGED)
    padded, _ = pad_packed_sequence(ours(sequence)[0])
    expected, _ = pad_packed_sequence(theirs(pack_padded_sequence(x, RAGGED))[0])
    assert_close([padded], [expected])
    shuffled = [2, 7, 4]  # enforce_sorted=False sorts by indices on the device
    results = [
        pad_packed_sequence(m(pack_padded_sequence(x.to(d), shuffled, enforce_sorted=False))[0])[0]
        for m, d in ((theirs, "cpu"), (ours, mps))
    ]
    assert_close([results[1]], [results[0]])


# Cotangents of some results only, expanded and strided ones, and inputs that are views with an offset.
COTANGENTS = {
    "sum": lambda outputs: outputs[0].sum(),
    "last step": lambda outputs: outputs[0][-1].square().sum(),
    "last h": lambda outputs: outputs[1].square().sum(),
    "last state": lambda outputs: outputs[-1].square().sum(),
    "transposed": lambda outputs: (outputs[0].transpose(0, 2) * outputs[0].transpose(0, 2).detach()).sum(),
}


@pytest.mark.parametrize("cotangent", COTANGENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_cotangents_and_views(kind, cotangent, mps, no_fallback):
    whole = torch.randn(14, 6, 9)
    views = [lambda t: t[::2, 1::2, 1::2], lambda t: t[:7, :3, :4].transpose(0, 1).contiguous().transpose(0, 1)]
    views += [lambda t: t[:7, :1, :1].expand(7, 3, 4)]
    modules = pair(kind, num_layers=2)
    for view in views:
        results = []
        for module in modules:
            x = view(whole.to(next(module.parameters()).device)).requires_grad_()
            outputs = run(module, x)
            loss = COTANGENTS[cotangent](outputs)
            results.append([*outputs, *torch.autograd.grad(loss, [x, *module.parameters()])])
        assert_close(results[1], results[0])


@pytest.mark.parametrize("wanted", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l1"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_gradient_alone(kind, wanted, mps, no_fallback):
    results = []
    x = torch.randn(7, 3, 4)
    for module in pair(kind, num_layers=2):
        module.requires_grad_(False)
        parameter = getattr(module, wanted).requires_grad_()
        results.append(torch.autograd.grad(run(module, x.to(parameter.device))[0].square().sum(), [parameter]))
    assert_close(results[1], results[0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_biases_are_not_one_tensor(kind, mps, no_fallback):
    _, ours = pair(kind)
    ours(torch.ones(3, 2, 4, device=mps))[0].sum().backward()
    assert ours.bias_ih_l0.grad.data_ptr() != ours.bias_hh_l0.grad.data_ptr()


@pytest.mark.parametrize("lengths", [None, RAGGED])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_is_kept(kind, lengths, mps, no_fallback):
    _, ours = pair(kind, bidirectional=True)
    leaves = leaves_of(ours, (7, 3))
    outputs = run(ours, *leaves, lengths=lengths)
    first = gradients(ours, outputs, leaves, retain_graph=True)
    for a, b in zip(first, gradients(ours, outputs, leaves)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lengths", [None, RAGGED])
@pytest.mark.parametrize("kind, options", [(kind, {"num_layers": 2}) for kind in KINDS] + CASES[-3:])
def test_second_derivatives(kind, options, lengths, mps, no_fallback):
    results = []
    for module in pair(kind, **options):
        x, *states = leaves_of(module, (4, 3))
        state = [x[:1, :, :1].expand_as(t) * t if not module.batch_first else t for t in states]  # depend on x
        packed = None if lengths is None else [4, 3, 1]
        outputs = run(module, x, *state, lengths=packed)
        first = gradients(module, outputs, [x, *states], create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in first), [x, *states, *module.parameters()])
        results.append([*first, *second])
    assert_close(results[1], results[0], 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_batched_cotangents(kind, mps, no_fallback):
    cotangents = torch.randn(2, 7, 3, 5)
    results = []
    for module in pair(kind):
        x = leaves_of(module, (7, 3))[0]
        of = cotangents.to(x.device)
        results.append(torch.autograd.grad(module(x)[0], [x, *module.parameters()], of, is_grads_batched=True))
    assert_close(results[1], results[0], 1e-3)


@pytest.mark.parametrize("kind, options", CASES)
def test_inference(kind, options, mps, no_fallback):
    theirs, ours = pair(kind, **options)
    x = torch.randn(3, 7, 4)
    for lengths in (None, RAGGED if options.get("batch_first") else [3, 3, 3, 2, 2, 1, 1]):
        expected = run(theirs, x, lengths=lengths)
        with torch.no_grad():
            actual = run(ours, x.to(mps), lengths=lengths)
        assert not actual[0].requires_grad
        assert_close(actual, expected)
        with torch.inference_mode():
            assert_close(run(ours, x.to(mps), lengths=lengths), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind, dtype, mps, no_fallback):
    """Results have autocast's dtype, as cuDNN's have, and gradients that of what they belong to."""
    theirs, ours = pair(kind, num_layers=2)
    results = []
    for module in (theirs, ours):
        leaves = leaves_of(module, (7, 3))
        with torch.autocast("mps", dtype, enabled=module is ours):
            outputs = run(module, *leaves)
        results.append([*outputs, *gradients(module, outputs, leaves)])
    outputs = 1 + len(leaves) - 1
    assert all(t.dtype == dtype for t in results[1][:outputs])
    assert all(t.dtype == torch.float32 for t in results[1][outputs:])
    assert_close(results[1], results[0], TOLERANCE[dtype])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_cells(kind, bias, mps, no_fallback):
    steps, states = torch.randn(3, 2, 4), torch.randn(2, 2, 5)
    results = []
    for module in pair(kind, bias=bias):
        device = next(module.parameters()).device
        x, h, c = (t.to(device).requires_grad_() for t in (steps, *states))
        state = (h, c) if kind is torch.nn.LSTMCell else h
        for step in x:
            state = module(step, state)
        outputs = list(state) if isinstance(state, tuple) else [state]
        leaves = [x, h, c][: 1 + len(outputs)]
        results.append([*outputs, *gradients(module, outputs, leaves)])
        assert module(steps[0, 0].to(device))[0].shape == (5,) or kind is not torch.nn.LSTMCell
    assert_close(results[1], results[0])


def test_dropout_between_layers(mps, no_fallback):
    """The masks differ from the CPU's; with everything dropped the second layer sees zeros on both."""
    theirs, ours = pair(torch.nn.LSTM, num_layers=2, dropout=0.5)
    x = torch.randn(7, 3, 4, device=mps)
    assert not torch.equal(ours(x)[0], ours(x)[0])
    theirs.dropout = ours.dropout = 1.0
    assert_close(run(ours, x), run(theirs, x.cpu()))
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_a_dispatch_forward_and_one_backward(kind, mps):
    import torch_anymps

    _, ours = pair(kind)

    def dispatches(steps):
        x = torch.randn(steps, 3, 4, device=mps, requires_grad=True)
        with torch_anymps.profile() as taken:
            ours(x)[0].sum().backward()
        return sum(kernel.calls for kernel in taken.kernels)

    dispatches(12)
    assert dispatches(22) - dispatches(12) == 20


# What is none of a module's goes PyTorch's own way, or meets its errors.
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_pytorch(kind, mps):
    _, ours = pair(kind)
    function = {torch.nn.LSTM: torch.lstm, torch.nn.GRU: torch.gru, torch.nn.RNN: torch.rnn_tanh}[kind]
    h = torch.zeros(1, 3, 5, device=mps)
    state = [h, h] if kind is torch.nn.LSTM else h
    rest = (True, 1, 0.0, False, False)
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        ours(torch.randn(0, 3, 4, device=mps))
    assert ours(torch.randn(7, 0, 4, device=mps))[0].shape == (7, 0, 5)
    x = torch.randn(7, 3, 4, device=mps)
    with pytest.raises(RuntimeError, match="incorrect number of RNN parameters|not divisible"):
        function(x, state, ours._flat_weights[:-1], *rest, False)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        function(torch.randn(7, 3, 5, device=mps), state, ours._flat_weights, *rest, False)
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        function(x.flatten(0, 1), torch.tensor([3, 4, 14]), state, ours._flat_weights, *rest)
