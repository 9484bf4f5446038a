"""torch.mps.compile_shader with Metal source: what is rewritten gives Metal's results, the rest is refused by name."""

from __future__ import annotations

import re
import struct

import pytest
import torch

from torch_anymps.user_kernels import is_slang
from torch_anymps.user_kernels.metal.tokens import Preprocessor, split, text_of, tokenize, without_comments

pytestmark = pytest.mark.usefixtures("mps")


def kernel(source: str, name: str = "f"):
    return getattr(torch.mps.compile_shader(source), name)


def one_line(tokens) -> str:
    return re.sub(r"\s+", " ", text_of(tokens)).strip()


def test_tokens_and_their_text():
    text = 'a->b[c[1]] += 0x1Fu >> 2; // gone\n f<vec<float, 4>>(1.5e-3f, "x,\\"y");'
    tokens = tokenize(without_comments(text))
    assert text_of(tokens) == text.replace("// gone", " ")
    assert [t.text for t in tokens[:5]] == ["a", "->", "b", "[", "c"] and tokens[-1].line == 2
    parts = split(tokenize("float a, array<int, 3> b, f(c, d), e < g"))
    assert [one_line(part) for part in parts] == ["float a", "array<int, 3> b", "f(c, d)", "e < g"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#define N 4\n#define SQ(x) ((x) * (x))\nfloat a[N] = SQ(b + 1);", "float a[4] = ((b + 1) * (b + 1));"),
        ("#define S(x) #x\n#define J(a, b) a##b\nJ(foo, 1) S(int)", 'foo1 "int"'),
        ("#define L(...) f(__VA_ARGS__)\nL(a, b)", "f(a, b)"),
        ("#define A B\n#define B A\nA", "A"),
        ("#if defined(__METAL__) && __METAL_VERSION__ >= 300\nyes\n#else\nno\n#endif", "yes"),
        ("#ifdef X\n#if 1\na\n#endif\n#elif 0x10 == 16\nb\n#else\nc\n#endif", "b"),
        ("#define F(x) x + \\\n  1\nF(2)", "2 + 1"),
        ("#define G() 3\n#undef H\nG() G", "3 G"),
    ],
)
def test_the_preprocessor(source, expected):
    assert one_line(Preprocessor().run(source)) == expected


def test_which_language_it_is():
    assert is_slang('[shader("compute")] void f() {}') and is_slang("import lib.math;\nvoid f() {}")
    assert not is_slang('kernel void f(device float* x) {} // [shader("compute")]')


def test_types_and_numbers():
    f = kernel("""
        kernel void f(device float* out, device const bfloat* b, device long* l, device uchar* u, device bool* flags,
                      constant half& h, constant bool& yes, constant int3& v, uint i [[thread_position_in_grid]]) {
            unsigned int big = 4000000000;
            const ulong wide = 1ul << 40;
            ushort s = ushort(70000u);
            out[0] = b[1] * 2.f + b[0];
            out[1] = h; out[2] = float(big >> 4); out[3] = float(wide >> 38); out[4] = s;
            out[5] = yes ? v.z : 0;
            out[6] = as_type<float>(0x3fc00000u);
            out[7] = static_cast<float>(numeric_limits<uchar>::max());
            out[8] = float(as_type<bfloat>(ushort(0x4040)));
            l[0] = -(long)wide; u[0] = 300 & 0xff; flags[0] = !flags[1];
            float4 w{1.0f, 2.0f, 3.0f, 4.0f};
            out[9] = w.wzyx.y + dot(w.xy, float2(1, 1)) + half(0.5h);
        }
    """)
    out = torch.zeros(10, device="mps")
    b = torch.tensor([0.5, 1.5], device="mps", dtype=torch.bfloat16)
    long, byte = torch.zeros(1, device="mps", dtype=torch.int64), torch.zeros(1, device="mps", dtype=torch.uint8)
    flags = torch.tensor([False, False, True], device="mps")
    f(out, b, long, byte, flags, 0.25, True, [1, 2, 3], threads=1, arg_casts={7: "int32"})
    assert out.tolist() == [3.5, 0.25, 250000000, 4, 70000 - 65536, 3, 1.5, 255, 3, 6.5]
    assert long.item() == -(1 << 40) and byte.item() == 44 and flags.tolist() == [True, False, True]


def test_functions_whose_names_differ():
    f = kernel("""
        using namespace metal;
        kernel void f(device float* x, uint i [[thread_position_in_grid]]) {
            x[0] = mix(1.0f, 3.0f, 0.25f); x[1] = fract(2.75f); x[2] = round(2.5f); x[3] = round(-2.5f);
            x[4] = pow(-2.0f, 3.0f); x[5] = fmod(-7.0f, 3.0f); x[6] = select(1.0f, 2.0f, true); x[7] = rint(2.5f);
            x[8] = popcount(255u); x[9] = clz(1u); x[10] = ctz(8u); x[11] = metal::precise::exp(0.0f);
            x[12] = isnan(NAN) + isinf(INFINITY); x[13] = copysign(3.0f, -1.0f); x[14] = fmax(NAN, 4.0f);
            x[15] = sign(-3.0f); x[16] = clamp(5.0f, 0.0f, 2.0f); x[17] = rsqrt(4.0f); x[18] = fma(2.0f, 3.0f, 4.0f);
            x[19] = tanh(100.0f); x[20] = mulhi(1u << 31, 6u); x[21] = max3(1.0f, 5.0f, 2.0f); x[22] = saturate(3.0f);
            x[23] = atan2(0.0f, -1.0f); x[24] = exp2(3.0f); x[25] = log2(8.0f); x[26] = fabs(-2.0f); x[27] = abs(-3);
            x[28] = length(float2(3, 4)); x[29] = any(bool2(false, true)); x[30] = sinpi(0.5f); x[31] = trunc(-1.5f);
            x[32] = round(0.49999997f); x[33] = fmin(float2(NAN, 3.0f), float2(1.0f, NAN)).y;
            x[34] = fmax(half(2), half(1));
        }
    """)
    x = torch.zeros(35, device="mps")
    f(x, threads=1)
    expected = [1.5, 0.75, 3, -3, -8, -1, 2, 2, 8, 31, 3, 1, 2, -3, 4, -1, 2, 0.5, 10, 1, 3, 5, 1, torch.pi, 8, 3, 2, 3]
    torch.testing.assert_close(x.cpu(), torch.tensor([*expected, 5, 1, 1, -1, 0, 3, 2]))


def test_words_of_slang_are_names_in_metal():
    f = kernel(
        """
        struct Pair { float in; float out; };
        static float func(float this_one) { return this_one + 1; }
        kernel void let(device float* in, device float* out, uint vector [[thread_position_in_grid]]) {
            Pair input; input.in = in[vector]; input.out = func(input.in);
            out[vector] = input.out;
        }
    """,
        "let",
    )
    x, y = torch.arange(4.0, device="mps"), torch.zeros(4, device="mps")
    f(x, y)
    assert y.tolist() == [1, 2, 3, 4]


THREADGROUPS = """
#include <metal_stdlib>
using namespace metal;
constant constexpr uint kTile = 8;

float tree(threadgroup float* values, uint tid, uint n) {
    for (uint d = n / 2; d > 0; d /= 2) {
        if (tid < d) values[tid] += values[tid + d];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    return values[0];
}

kernel void row_sums(device const float* x, device float* out, constant uint& n,
                     uint row [[threadgroup_position_in_grid]],
                     uint tid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    threadgroup float values[64];
    float sum = 0;
    for (uint i = tid; i < n; i += size) sum += x[row * n + i];
    values[tid] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = tree(values, tid, size);
    if (tid == 0) out[row] = total;
}

kernel void transpose(device const float* a, device float* b, constant uint2& size,
                      uint2 at [[thread_position_in_grid]], uint2 in_tile [[thread_position_in_threadgroup]],
                      uint2 tile [[threadgroup_position_in_grid]]) {
    threadgroup float values[kTile][kTile + 1];
    if (at.x < size.x && at.y < size.y) values[in_tile.y][in_tile.x] = a[at.y * size.x + at.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint2 to = tile.yx * kTile + in_tile;
    if (to.x < size.y && to.y < size.x) b[to.y * size.y + to.x] = values[in_tile.x][in_tile.y];
}

kernel void sizes(device int* out, uint i [[thread_position_in_grid]], uint here [[threads_per_threadgroup]],
                  uint all [[threads_per_grid]], uint group [[threadgroup_position_in_grid]],
                  uint groups [[threadgroups_per_grid]], uint index [[thread_index_in_threadgroup]]) {
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = here + 100 * group + 1000 * groups + 10000 * index + 1000000 * all;
}

kernel void histogram(device const int* x, device atomic_uint* counts, uint i [[thread_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint here[8];
    if (t < 8) atomic_store_explicit(&here[t], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&here[x[i]], 1, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint count = atomic_load_explicit(&here[t & 7], memory_order_relaxed);
    if (t < 8) atomic_fetch_add_explicit(&counts[t], count, memory_order_relaxed);
}
"""


@pytest.fixture(scope="module")
def threadgroups(mps):
    return torch.mps.compile_shader(THREADGROUPS)


def test_threadgroup_memory(threadgroups):
    x, out = torch.randn(5, 300, device="mps"), torch.zeros(5, device="mps")
    threadgroups.row_sums(x, out, 300, threads=5 * 64, group_size=64)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-5, atol=1e-4)
    a, b = torch.randn(37, 53, device="mps"), torch.zeros(53, 37, device="mps")
    threadgroups.transpose(a, b, [53, 37], threads=(56, 40), group_size=(8, 8))
    assert torch.equal(b, a.t())


def test_pointers_to_threadgroup_memory():
    f = kernel("""
        kernel void f(device float* x, constant uint& half_of, uint i [[thread_position_in_threadgroup]]) {
            threadgroup float tile[64];
            threadgroup float* all = tile;
            threadgroup float* low = &tile[0];
            threadgroup float* high = tile + half_of;
            threadgroup float* last = high + 2 * 8;
            all[i] = x[i];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (i < half_of) { float v = low[i]; low[i] = high[i]; high[half_of - 1 - i + i * 0] += 0 * v; }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            x[i] = tile[i] + (i == 0 ? last[15] : 0.0f);
        }
    """)
    x = torch.arange(64.0, device="mps")
    f(x, 32, group_size=64)
    expected = torch.cat([torch.arange(32.0, 64), torch.arange(32.0, 64)])
    expected[0] += 63
    assert torch.equal(x.cpu(), expected)


def test_as_many_threads_as_were_asked_for(threadgroups):
    """Kernels with barriers too: the last threadgroup is smaller, as on a Mac, and nothing is written beyond."""
    out = torch.zeros(300, device="mps", dtype=torch.int32)
    threadgroups.sizes(out, threads=250, group_size=64)
    i = torch.arange(250)
    expected = torch.where(i < 192, 64, 58) + 100 * (i // 64) + 4000 + 10000 * (i % 64) + 250000000
    assert torch.equal(out[:250].cpu().long(), expected) and out[250:].eq(0).all()
    fill = kernel("kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }")
    x = torch.zeros(1000, device="mps")
    fill(x, threads=777, group_size=100)
    assert x[:777].eq(1).all() and x[777:].eq(0).all()


def test_threads_in_the_third_dimension():
    f = kernel("kernel void f(device float* x, uint3 i [[thread_position_in_grid]]) { x[i.z] = i.z + i.x; }")
    x = torch.zeros(1000, device="mps")
    f(x, threads=(1, 1, 1000))
    assert torch.equal(x.cpu(), torch.arange(1000.0))


def test_more_threadgroups_than_a_dimension_has():
    count = 65535 * 2 + 7
    x = torch.zeros(count, device="mps")
    kernel("kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] = i; }")(x, group_size=1)
    assert torch.equal(x.cpu(), torch.arange(count, dtype=torch.float32))


def test_atomics(threadgroups):
    x = torch.randint(0, 8, (1024,), device="mps", dtype=torch.int32)
    counts = torch.zeros(8, device="mps", dtype=torch.int32)
    threadgroups.histogram(x, counts, group_size=128)
    assert torch.equal(counts.cpu(), torch.bincount(x.cpu(), minlength=8).int())
    add = kernel("""kernel void f(device atomic_float* sum, device const float* x, device atomic_int* most,
                                  uint i [[thread_position_in_grid]]) {
        atomic_fetch_add_explicit(sum, x[i], memory_order_relaxed);
        atomic_fetch_max_explicit((device atomic_int*)&most[1], int(i), memory_order_relaxed);
    }""")
    total, values, most = (
        torch.zeros(1, device="mps"),
        torch.ones(500, device="mps"),
        torch.zeros(2, device="mps").int(),
    )
    add(total, values, most, threads=500)
    assert total.item() == 500 and most.tolist() == [0, 499]


def test_any_argument_may_be_a_buffer():
    f = kernel("""
        struct Options { int n; float scale; };
        struct Inputs { array<device float*, 3> rows; };
        kernel void f(device float* out [[buffer(0)]], constant float* weights [[buffer(1)]],
                      constant Options& options [[buffer(2)]], constant Inputs& inputs [[buffer(4)]],
                      constant long& last [[buffer(3)]], uint i [[thread_position_in_grid]]) {
            if (int(i) >= options.n) return;
            float sum = 0;
            for (int k = 0; k < 3; ++k) sum += weights[k] * inputs.rows[k][i];
            out[i] = sum * options.scale + last;
        }
    """)
    rows = [torch.randn(10, device="mps") for _ in range(3)]
    expected = (rows[0] + 2 * rows[1] - rows[2]) * 0.5 + 7
    options = torch.frombuffer(bytearray(struct.pack("if", 10, 0.5)), dtype=torch.uint8).to("mps")
    weights = torch.tensor([1.0, 2.0, -1.0], device="mps")
    last = torch.tensor([7], device="mps")
    for given in ([1.0, 2, -1], weights):
        for number in (7, last):
            out = torch.zeros(12, device="mps")
            f(out, given, options, number, rows, threads=12)
            torch.testing.assert_close(out[:10], expected)
            assert out[10:].eq(0).all()


def test_graphs_replay_it():
    f = kernel("""
        kernel void f(device float* x, constant float* w, constant float& b, uint i [[thread_position_in_grid]]) {
            threadgroup_barrier(mem_flags::mem_device);
            x[i] = x[i] * w[1] + b;
        }
    """)
    x = torch.ones(1000, device="mps")
    f(x, [1.0, 2.0], 0.5, threads=1000, group_size=128)
    graph = torch.accelerator.Graph()
    with graph:
        f(x, [1.0, 3.0], 0.25, threads=999, group_size=128)  # two launches: the last threadgroup is smaller
    for _ in range(300):
        f(x, [0.0, 0.0], 1.0, threads=1000)
    for _ in range(2):
        graph.replay()
    assert x[:999].eq((1 * 3 + 0.25) * 3 + 0.25).all() and x[999] == 1


def test_what_is_read_needs_no_barrier_and_stays_shared():
    f = kernel(
        "kernel void f(device const float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }"
    )
    x = torch.ones(16, device="mps")
    lazy = torch._lazy_clone(x)
    y = torch.zeros(16, device="mps")
    f(lazy, y)
    assert torch._C._is_cow_tensor(lazy) and y.eq(1).all()


def test_errors_of_kernels():
    f = kernel("""
        #include <c10/metal/error.h>
        kernel void f(device float* x, device c10::metal::ErrorMessages* errors, constant int& most,
                      uint i [[thread_position_in_grid]]) {
            if (x[i] > most) { TORCH_REPORT_ERROR(errors, "value ", x[i], " is above ", most); return; }
            x[i] = 0;
        }
    """)
    x = torch.arange(4.0, device="mps")
    f(x, 5, error_buf_idx=1)
    torch.mps.synchronize()
    x = torch.arange(4.0, device="mps")
    f(x, 2, error_buf_idx=1)
    with pytest.raises(torch.AcceleratorError, match=r"value \? is above \?"):
        torch.mps.synchronize()
    assert x.tolist() == [0, 0, 0, 3]
