"""Simd functions of Metal source: simdgroups have 32 threads on every device, in branches and loops too."""

from __future__ import annotations

import pytest
import torch

from torch_anymps.user_kernels import compile_kernels, has_simdgroups
from torch_anymps.user_kernels.metal import translate

pytestmark = pytest.mark.usefixtures("mps")

SIMD = """
kernel void two_levels(device const float* x, device float* out, constant uint& n,
                       uint row [[threadgroup_position_in_grid]],
                     uint tid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]],
                       uint groups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];
    float sum = 0;
    for (uint i = tid; i < n; i += size) sum += x[row * n + i];
    sum = simd_sum(sum);
    if (lane == 0) partial[group] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (group == 0) {
        float v = lane < groups ? partial[lane] : 0.0f;
        v = simd_sum(v);
        if (lane == 0) { out[row] = v; }
    }
}
kernel void each(device float* out, device const int* x, uint i [[thread_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]]) {
    const int v = x[i];
    int down = v;
    for (ushort d = 16; d > 0; d >>= 1) down += simd_shuffle_down(down, d);
    device float* row = out + 8 * i;
    row[0] = simd_max(v); row[1] = simd_min(float(v)); row[2] = simd_broadcast(down, 0);
    row[3] = simd_shuffle_xor(v, 1);
    row[4] = simd_prefix_exclusive_sum(v); row[5] = simd_prefix_inclusive_sum(v); row[6] = simd_any(v == 3);
    row[7] = simd_shuffle(v, ushort(31 - lane));
}
"""


def test_simdgroups_have_32_threads():
    library = torch.mps.compile_shader(SIMD)
    assert library.each.thread_execution_width == 32
    x, out = torch.randn(3, 1000, device="mps"), torch.zeros(3, device="mps")
    library.two_levels(x, out, 1000, threads=3 * 256, group_size=256)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-5, atol=1e-4)
    x = torch.randperm(128, dtype=torch.int32)
    out = torch.zeros(128, 8, device="mps")
    library.each(out, x.to("mps"), threads=128, group_size=64)
    groups = x.view(4, 32)
    columns = [
        groups.max(1, keepdim=True).values.expand(4, 32),
        groups.min(1, keepdim=True).values.expand(4, 32),
        groups.sum(1, keepdim=True).expand(4, 32),
        groups.view(4, 16, 2).flip(2).reshape(4, 32),
        groups.cumsum(1) - groups,
        groups.cumsum(1),
        (groups == 3).any(1, keepdim=True).expand(4, 32),
        groups.flip(1),
    ]
    assert torch.equal(out.cpu(), torch.stack([c.reshape(128).float() for c in columns], 1))


UNIFORM = """
kernel void scores(device const float* q, device const float* k, device float* out, constant uint& n, constant uint& d,
                   uint row [[threadgroup_position_in_grid]], uint tid [[thread_position_in_threadgroup]],
                   uint size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                   uint group [[simdgroup_index_in_threadgroup]]) {
    threadgroup float partial[32];
    const uint last = row + 1;
    const uint groups = (size + 31) / 32;
    if (last > n) { return; }
    device const float* query = q + row * d;
    for (uint col = 0; col < last; ++col) {
        device const float* key = k + col * d;
        float dot = 0;
        for (uint i = tid; i < d; i += size) dot += query[i] * key[i];
        dot = simd_sum(dot);
        if (lane == 0) partial[group] = dot;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == 0) {
            float total = lane < groups ? partial[lane] : 0.0f;
            total = simd_sum(total);
            if (lane == 0) out[row * n + col] = total;
        } else {
            float nothing = simd_max(dot);
            if (nothing > 1e30f) out[0] = nothing;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
kernel void rows(device const float* x, device float* out, constant uint& n, constant uint& d,
                 uint index [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint row = index / 32;
    if (row >= n) return;
    device const float* values = x + row * d;
    float sum = 0, most = -INFINITY;
    for (uint i = lane; i < d; i += 32) { sum += values[i]; most = max(most, values[i]); }
    sum = simd_sum(sum);
    const float peak = simd_max(most);
    if (lane == 0) out[row] = sum + peak;
}
"""


def test_simd_functions_where_not_all_threads_come():
    library = torch.mps.compile_shader(UNIFORM)
    q, k = torch.randn(6, 100, device="mps"), torch.randn(6, 100, device="mps")
    out = torch.zeros(6, 6, device="mps")
    library.scores(q, k, out, 6, 100, threads=7 * 96, group_size=96)
    torch.testing.assert_close(out, (q @ k.t()).tril(), rtol=1e-4, atol=1e-4)
    x, out = torch.randn(5, 70, device="mps"), torch.zeros(8, device="mps")
    library.rows(x, out, 5, 70, threads=8 * 32, group_size=128)
    torch.testing.assert_close(out[:5], x.sum(1) + x.max(1).values, rtol=1e-5, atol=1e-5)
    assert out[5:].eq(0).all()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("for (uint k = i; k < 9; ++k) x[k] = simd_sum(x[k]);", "a loop that threads may leave at different"),
        ("float m = x[i]; while (m > 0) { m = simd_sum(m) - 1; }", "a loop that threads may leave at different"),
        ("for (int k = 0; k < 3; ++k) { if (i > 3) break; x[i] += simd_sum(x[i]); }", "behind a return of some"),
        ("if (i > 2) { x[i] = 3; return; } x[i] = simd_sum(x[i]);", "behind a return of some threads"),
        ("if (i > 2) { auto v = x[i]; x[i] = simd_sum(v); }", "this declaration"),
        ("if (simd_sum(x[i]) > 2) { x[i] = 0; }", "the condition of an if"),
        ("switch (i) { case 0: x[0] = simd_sum(x[0]); }", "switch"),
    ],
)
def test_simd_functions_in_branches_elsewhere(statement, words):
    source = f"kernel void f(device float* x, uint i [[thread_position_in_grid]]) {{ {statement} }}"
    assert "simd_sum" in translate(source, native_simd=True).source
    with pytest.raises(SyntaxError, match=words):
        translate(source, native_simd=False)
    if not has_simdgroups():
        with pytest.raises(SyntaxError, match=words):
            torch.mps.compile_shader(source)


@pytest.mark.parametrize("source", [SIMD, UNIFORM], ids=["simd", "uniform"])
def test_both_ways_compile(source):
    """What a device with subgroups of 32 threads gets, and what others get, whatever this one has."""
    for native_simd in (True, False):
        text = translate(source, native_simd).source
        assert compile_kernels(text, 0)
        assert ("lib.metal_simd;" in text) == native_simd
