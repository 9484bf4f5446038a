"""Templates, types and matrices of Metal source."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mps")


def kernel(source: str):
    return torch.mps.compile_shader(source).f


TEMPLATES = """
template <typename T, int N = 2>
struct Sums {
    T values[N];
    void clear() { for (int i = 0; i < N; ++i) values[i] = T(0); }
    void add(T x) { values[0] += x; values[N - 1] += x; }
    T first() const { return values[0]; }
};
template <typename T> inline T twice(T x) { return x + x; }
template <> inline half twice<half>(half x) { return x * 4; }
template <typename T> T plus_one(T x) { return x + T(1); }

template <typename T, uint STEP>
[[kernel]] void sums(device const T* x [[buffer(0)]], device T* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    Sums<float> s;
    s.clear();
    for (uint k = 0; k < STEP; ++k) s.add(float(x[i * STEP + k]));
    if (is_same_v<T, float>) s.add(100.0f);
    out[i] = plus_one(twice<T>(T(s.first())));
}
#define instantiate(T, n) \\
  template [[host_name("sums_" #T "_" #n)]] [[kernel]] decltype(sums<T, n>) sums<T, n>;
instantiate(float, 2)
instantiate(half, 4)
instantiate(int, 2)
"""


def test_templates():
    library = torch.mps.compile_shader(TEMPLATES)
    assert dir(library) == ["sums_float_2", "sums_half_4", "sums_int_2"]
    for name, dtype, step, factor, more in [
        ("sums_float_2", torch.float32, 2, 2, 100),
        ("sums_half_4", torch.float16, 4, 4, 0),
        ("sums_int_2", torch.int32, 2, 2, 0),
    ]:
        x = torch.arange(24, device="mps").to(dtype)
        out = torch.zeros(24 // step, device="mps", dtype=dtype)
        getattr(library, name)(x, out, threads=len(out))
        expected = (x.view(-1, step).sum(1) + more) * factor + 1
        assert torch.equal(out, expected.to(dtype))


def test_matrices():
    f = kernel("""
        struct View { float4x4 m; float3x2 n; };
        kernel void f(device float* out, constant float4x4& m, device const float4* v, constant View& view) {
            device const float4* w = v + 2; w += 1; w -= 3;
            const float4 a = m * w[0], b = v[0] * m;
            float4x4 square = m * transpose(m);
            square += view.m * 2.0f;
            float3x3 q(2.0f);
            q[1][2] = 5.0f;
            float2x2 r = float2x2(float2(1, 2), float2(3, 4));
            for (int i = 0; i < 4; ++i) { out[i] = a[i]; out[4 + i] = b[i]; out[8 + i] = square[i][1]; }
            out[12] = (q * float3(1, 1, 1)).z; out[13] = (r * float2(1, 1)).x; out[14] = view.n[2].y;
        }
    """)
    m, v = torch.randn(4, 4), torch.randn(4)  # a row of m is a column there
    view = torch.cat([torch.arange(16.0), torch.arange(6.0)])
    out = torch.zeros(15, device="mps")
    f(out, m.to("mps"), v.to("mps"), view.to("mps"), threads=1)
    square = m.t() @ m + 2 * torch.arange(16.0).view(4, 4).t()
    expected = torch.cat([m.t() @ v, m @ v, square[1], torch.tensor([7.0, 4.0, 5.0])])
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_pointers_that_go_back():
    f = kernel("""
        kernel void f(device float* out, device const float* x, constant int& n) {
            device const float* p = x + 4; p += n; device const float* q = x + 4; q -= 3;
            device const float* r = x + 4 - 2; device const float* s = x + 5 + (n + 2);
            out[0] = p[0]; out[1] = q[0]; out[2] = r[0]; out[3] = s[0]; out[4] = *(x + 8 - 4u);
        }
    """)
    out = torch.zeros(5, device="mps")
    f(out, torch.arange(1.0, 9.0, device="mps"), -4, threads=1)
    assert out.tolist() == [1, 2, 3, 4, 5]


def test_templates_that_ask_for_themselves():
    f = kernel("""
        template <int N> inline float sum(float x) { return x * N + sum<N - 1>(x); }
        template <> inline float sum<0>(float x) { return 0.0f; }
        kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] = sum<4>(x[i]); }
    """)
    x = torch.arange(3.0, device="mps")
    f(x)
    assert x.tolist() == [0, 10, 20]


def test_types_that_a_template_names():
    library = torch.mps.compile_shader("""
        template <typename T> struct Wide {};
        template <> struct Wide<float> { using type4 = float4; using type2 = float2; };
        template <> struct Wide<half> { using type4 = half4; using type2 = half2; };
        template <> struct Wide<bfloat> { using type4 = bfloat4; using type2 = bfloat2; };
        template <typename T>
        kernel void dots(device const T* x, device T* out, uint i [[thread_position_in_grid]]) {
            using vec4_t = typename Wide<T>::type4;
            device const vec4_t* values = reinterpret_cast<device const vec4_t*>(x);
            const float4 v = float4(values[i]);
            out[i] = static_cast<T>(dot(v, v));
        }
        template [[host_name("dots_float")]] kernel void dots<float>(device const float*, device float*, uint);
        template [[host_name("dots_bfloat")]] kernel void dots<bfloat>(device const bfloat*, device bfloat*, uint);
        template [[host_name("dots_half")]] kernel void dots<half>(device const half*, device half*, uint);
    """)
    for name, dtype in [("float", torch.float32), ("bfloat", torch.bfloat16), ("half", torch.float16)]:
        x = torch.randint(-3, 4, (40,), device="mps").to(dtype)
        out = torch.zeros(10, device="mps", dtype=dtype)
        getattr(library, "dots_" + name)(x, out, threads=10)
        assert torch.equal(out, x.view(10, 4).square().sum(1))
