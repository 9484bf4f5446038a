"""torch.mps.compile_shader with Metal source that is refused, is wrong, or is called wrongly."""

from __future__ import annotations

import pytest
import torch

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
