"""torch.mps.compile_shader with Metal source that is refused, is wrong, or is called wrongly."""

from __future__ import annotations

import pytest
import torch

from torch_anymps.user_kernels.metal import translate
from torch_anymps.user_kernels.metal.tokens import text_of, tokenize

pytestmark = pytest.mark.usefixtures("mps")


@pytest.mark.parametrize(
    ("source", "construct"),
    [
        ("kernel void f(texture2d<float> t, uint i [[thread_position_in_grid]]) {}", "the parameter"),
        ("kernel void f(device float* x) { simdgroup_float8x8 m; }", "simdgroup_matrix"),
        (
            "constant int n [[function_constant(0)]];\nkernel void f(device float* x) { x[0] = n; }",
            "function constants",
        ),
        (
            "kernel void f(device float* x, threadgroup float* s [[threadgroup(0)]]) {}",
            r"\[\[threadgroup\]\]|threadgroup",
        ),
        ("kernel void f(device float3* x) {}", "a pointer to float3"),
        ("struct S { float a; float4 b; };\nkernel void f(device S* x) {}", "a buffer of S"),
        ("kernel void f(device float3x3* x) {}", "matrices whose columns have three"),
        ("struct A { int x; };\nstruct B : A { int y; };", "inheritance"),
        ("class C { int x; };\nkernel void f(device float* x) { }", "a declaration was expected|classes"),
        (
            "kernel void f(device float* x) { threadgroup float s[4]; threadgroup float* p = x[0] > 1 ? s : s; }",
            "an array",
        ),
        (
            "kernel void f(device float* x) { threadgroup float s[4]; threadgroup float* p = s + 1; *p = 1; }",
            "a pointer into",
        ),
        ("void g(thread float* p) { *p = 1; }\nkernel void f(device float* x) { }", "a pointer to thread memory"),
        ("#include <c10/metal/indexing.h>", "c10/metal/indexing.h"),
        ("#include <my_header.h>", "my_header.h"),
        ("kernel void f(device float* x, uint i [[thread_index_in_quadgroup]]) {}", "thread_index_in_quadgroup"),
        ("vertex float4 f(uint i [[vertex_id]]) { return float4(0); }", "vertex functions"),
        ("kernel void f(device float* x) { x[0] = quad_sum(x[0]); }", "quad functions"),
        (
            "template <int N> int g() { return g<N + 1>(); }\nkernel void f(device int* x) { x[0] = g<1>(); }",
            "more than",
        ),
        ("kernel void f(device int* x) { x[0] = " + "int{" * 2000 + "1" + "}" * 2000 + "; }", "nested so deeply"),
        ("template <typename... T> void g(T... x) {}\nkernel void f(device float* x) { g<int>(3); }", "any number"),
    ],
)
def test_what_is_refused_is_named(source, construct):
    with pytest.raises(SyntaxError, match=construct):
        torch.mps.compile_shader(source)


@pytest.mark.parametrize(
    "source",
    [
        "Syntax error",
        "kernel void f(device float* x) { x[0] = ; }",
        "kernel void f(device float* x { x[0] = 1; }",
        "kernel void f(device float* x) { x[0] = undefined_name; }",
        "#if 1 +\n#endif",
        "#define F(x) x\nfloat y = F(1, 2);",
        'kernel void f(device float* x) { "',
        "struct",
        "template",
        "kernel",
        "}",
        "[[",
        "namespace n",
        "using x",
        "kernel void f(device float* x) { if }",
        "enum",
        "template <typename T",
    ],
)
def test_wrong_source_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        torch.mps.compile_shader(source)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda f, x: f(x), TypeError, r"f\(\) takes 3 arguments but 1 were given"),
        (lambda f, x: f(x, 1.5, [1.0, 2.0]), TypeError, "argument 1 must be int, not float"),
        (lambda f, x: f(x, 1, 2.0), TypeError, "argument 2 must be 2 numbers, not 1"),
        (lambda f, x: f(x.cpu(), 1, [1.0, 2.0]), RuntimeError, "must be a tensor on mps, and is on cpu"),
        (lambda f, x: f(x, 1, [1.0] * 20000), RuntimeError, "64 KiB"),
        (lambda f, x: f(x, 1, [1.0, 2.0], group_size=5000), ValueError, "exceeds the limit of"),
        (lambda f, x: f(x, 1, [1.0, 2.0], threads=(1, 1, 99), group_size=(1, 1, 65)), ValueError, "64 in the third"),
        (lambda f, x: f(x, 1, [x.cpu()]), RuntimeError, "must be a tensor on mps"),
        (lambda f, x: f(x, 1, [x, 3]), TypeError, "must be a tensor, not int"),
    ],
)
def test_wrong_arguments(call, error, words):
    f = torch.mps.compile_shader(
        "kernel void f(device float* x, constant int& n, constant float2& v) { x[0] = n + v.x; }"
    ).f
    with pytest.raises(error, match=words):
        call(f, torch.ones(4, device="mps"))


def test_no_cut_source_is_another_error():
    """Every piece of a source is understood or a SyntaxError."""
    source = """
#define SCALE(x) ((x) * 2)
template <typename T, int N> struct Sums { T values[N]; void add(T x) { values[0] += x; } };
template <typename T> inline T twice(T x) { return SCALE(x); }
kernel void f(device const float* x [[buffer(0)]], constant uint& n, uint i [[thread_position_in_grid]]) {
    threadgroup float s[32];
    Sums<float, 2> sums{};
    if (i > 3) { s[i] = simd_sum(x[i]); } else { for (uint k = 0; k < n; ++k) sums.add(twice<float>(x[k])); }
    auto g = [](float v) { return v + as_type<float>(1u) + numeric_limits<float>::max(); };
}
template [[host_name("h")]] kernel void g<float>(device float*);
"""
    tokens = tokenize(source)
    for native_simd in (True, False):
        for k in range(len(tokens)):
            for piece in (tokens[:k], tokens[k:], tokens[:k] + tokens[k + 1 :]):
                try:
                    translate(text_of(piece), native_simd)
                except SyntaxError:
                    continue
