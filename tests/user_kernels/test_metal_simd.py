"""Simd functions of Metal source: simdgroups have 32 threads on every device, in branches and loops too."""

from __future__ import annotations

import pytest
import torch

from torch_anymps.user_kernels import compile_kernels, has_simdgroups
from torch_anymps.user_kernels.kernel import MetalKernel
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


WIDTH = '[shader("compute")] [numthreads(1, 1, 1)] void f(uniform float* x) { x[0] = 1; }'
LANES = """
kernel void f(device float* out, device const float* x, device int* where, uint i [[thread_position_in_grid]],
              uint lane [[thread_index_in_simdgroup]]) {
    device float* row = out + 10 * i;
    const float v = x[i];
    row[0] = simd_sum(v); row[1] = simd_max(v); row[2] = simd_min(v); row[3] = simd_broadcast(v, ushort(2));
    row[4] = simd_shuffle_xor(v, 1); row[5] = simd_prefix_exclusive_sum(v); row[6] = simd_prefix_inclusive_sum(v);
    row[7] = float(simd_sum(half(v))); row[8] = float(simd_sum(bfloat(v)));
    row[9] = simd_all(v > 0) + 2 * simd_any(v > 6);
    auto most = simd_argmax(v);
    where[i] = int(most.second) + 100 * int(lane) + 10000 * int(simd_argmin(int(v)).second);
}
"""


@pytest.mark.parametrize("native_simd", [True, False])
def test_functions_on_the_devices_own_subgroups(native_simd):
    """The functions for subgroups of 32 threads, on the subgroups that there are."""
    lanes = 32 if has_simdgroups() or not native_simd else torch.mps.compile_shader(WIDTH).f.thread_execution_width
    translation = translate(LANES, native_simd)
    [(_, handle)] = compile_kernels(translation.source, 32 if has_simdgroups() and native_simd else 0)
    f = MetalKernel(translation.kernels[0], [], handle)
    x = torch.randint(1, 8, (128,)).float()
    out, where = torch.zeros(128, 10, device="mps"), torch.zeros(128, dtype=torch.int32, device="mps")
    f(out, x.to("mps"), where, threads=128, group_size=64)
    groups = x.view(-1, lanes)
    total = groups.sum(1, keepdim=True).expand_as(groups)
    most = groups.max(1, keepdim=True).values
    columns = [
        total,
        most.expand_as(groups),
        groups.min(1, keepdim=True).values.expand_as(groups),
        groups[:, 2:3].expand_as(groups),
        groups.view(-1, 2).flip(1).view_as(groups),
        groups.cumsum(1) - groups,
        groups.cumsum(1),
        total,
        total.bfloat16().float(),
        1 + 2 * (groups > 6).any(1, keepdim=True).float().expand_as(groups),
    ]
    torch.testing.assert_close(out.cpu(), torch.stack([c.reshape(128) for c in columns], 1))
    first = torch.arange(lanes).expand_as(groups)
    argmax = first.masked_fill(groups != most, 99).min(1, keepdim=True).values
    argmin = first.masked_fill(groups != groups.min(1, keepdim=True).values, 99).min(1, keepdim=True).values
    assert torch.equal(where.cpu().view_as(groups).long(), argmax + 100 * first + 10000 * argmin)
