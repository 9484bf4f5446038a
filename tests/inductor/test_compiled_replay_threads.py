"""torch.compile(mode="reduce-overhead") in threads beside eager work: results only, not that each is replayed."""

import threading

import torch

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

    threads = [threading.Thread(target=replay, args=(n,)) for n in range(THREADS)] + [threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert eager == [1000.0 * i * (i + 1) / 2 for i in range(100)]
    for number, function in enumerate(functions):
        expected = [function(x) for x in inputs[number]]
        torch.testing.assert_close(results[number], expected, rtol=1e-5, atol=1e-5)
