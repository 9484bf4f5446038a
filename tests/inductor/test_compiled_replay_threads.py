"""torch.compile in threads: settings that hold in all of them, replays beside eager work."""

import threading

import torch
from torch._dynamo.utils import counters

SETTINGS = """if True:
    import threading, torch
    from torch._inductor import config
    names = ("combo_kernels", "layout_optimization", "cudagraph_policy", "pre_grad_custom_pass",
             "joint_custom_pre_pass", "inductor_choices_class")
    seen = []

    def compiled():
        x = torch.ones(9, device="mps")
        torch.compile(lambda x: x.sin() + 1)(x)
        seen.append([type(value) if name[-4:] in ("pass", "licy") else value for name in names
                     for value in [getattr(config, name)]])

    for _ in range(3):
        thread = threading.Thread(target=compiled)
        thread.start()
        thread.join()
    compiled()
    assert len(seen) == 4 and all(each == seen[0] for each in seen) and None not in seen[0], seen
"""


def test_settings_hold_in_every_thread(run_python):
    """Inductor's config has values of its own in each thread; the first one to compile installs ours."""
    done = run_python(SETTINGS)
    assert done.returncode == 0, done.stderr


THREADS, CALLS = 8, 12


def test_threads_replay_functions_of_their_own(mps):
    results, eager, meet = {}, [], threading.Barrier(THREADS + 1, timeout=250)
    weight = torch.randn(24, 24, device=mps) / 24
    functions = [lambda x, n=n: torch.softmax(x @ weight, 1) * n + x.cos() for n in range(THREADS)]
    inputs = torch.randn(THREADS, CALLS, 20, 24, device=mps)
    compiled = [torch.compile(function, mode="reduce-overhead", dynamic=False) for function in functions]

    def replay(number):
        with torch.no_grad():
            compiled[number](inputs[number, 0].clone())
            meet.wait()
            results[number] = [compiled[number](x.clone()).clone() for x in inputs[number]]

    def work():
        other = torch.zeros(1000, device=mps)
        meet.wait()
        for i in range(100):
            other += torch.full((1000,), float(i), device=mps)
            eager.append(other.sum().item())

    skips = counters["inductor"]["cudagraph_skips"]
    threads = [threading.Thread(target=replay, args=(n,)) for n in range(THREADS)] + [threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters["inductor"]["cudagraph_skips"] == skips
    assert eager == [1000.0 * i * (i + 1) / 2 for i in range(100)]
    for number, function in enumerate(functions):
        expected = [function(x) for x in inputs[number]]
        torch.testing.assert_close(results[number], expected, rtol=1e-5, atol=1e-5)
