"""Context parallel attention: each rank has a part of every sequence, and keys and values go round.

PyTorch does so for the operators of CUDA's fused attention. What mps has in their place DTensor takes apart into
products and a mask for sequences in order, but balanced parts are out of order: causal attention would be wrong.
"""

import functools

WHY = "context_parallel() goes round with keys and values on mps, in place of a mask that is wrong for balanced parts."
TARGETS = ("torch.distributed.tensor.experimental._context_parallel._attention",)
SEQUENCE = 2  # the dimension that PyTorch's own takes, too


def apply(module, replace):
    for name in ("_templated_ring_attention", "_templated_ring_attention_backward", "_cp_options"):
        getattr(module, name)  # raises where the version has others
    replace(module, "_distribute_function", _with_ring(module))
    plan = module._ContextParallel
    replace(plan, "sdpa_input_fn", _without_plans(module, plan.sdpa_input_fn))


def _with_ring(cp):
    distribute = cp._distribute_function

    @functools.wraps(distribute)
    def _distribute_function(fn, fn_module, device_mesh, input_fn, output_fn):
        if fn in cp._replaced_functions:
            return
        distribute(fn, fn_module, device_mesh, input_fn, output_fn)
        by_operators = getattr(fn_module, fn.__name__)
        if fn.__name__ != "scaled_dot_product_attention":
            return

        def attention(
            query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
        ):
            ordered = not is_causal and (attn_mask is None or not cp._cp_options.enable_load_balance)
            refused = not enable_gqa and query.shape[:-2] != key.shape[:-2]  # by the operator
            if query.device.type != "mps" or ordered or refused:
                options = {"scale": scale, "enable_gqa": enable_gqa}
                return by_operators(query, key, value, attn_mask, dropout_p, is_causal, **options)
            if attn_mask is not None:
                raise NotImplementedError("attn_bias is not supported yet")
            query, key, value = _autocast(query, key, value)
            return _ring().apply(query, key, value, cp, device_mesh.get_group(), dropout_p, is_causal, scale)

        setattr(fn_module, fn.__name__, attention)
        cp._replaced_functions[attention] = cp._replaced_functions.pop(by_operators)

    return _distribute_function


def _without_plans(cp, sdpa_input_fn):
    @functools.wraps(sdpa_input_fn)
    def input_fn(self, module, args, kwargs, mesh):
        import torch

        of_mps = any(isinstance(x, torch.Tensor) and x.device.type == "mps" for x in (*args, *kwargs.values()))
        if module is not None and of_mps and cp._cp_options.enable_load_balance:
            raise NotImplementedError("On mps balanced parts of sequences need context_parallel(), not a plan.")
        return sdpa_input_fn(self, module, args, kwargs, mesh)

    return input_fn


def _autocast(*tensors):
    import torch

    if not torch.is_autocast_enabled("mps"):
        return tensors
    return [x.to(torch.get_autocast_dtype("mps")) if x.is_floating_point() else x for x in tensors]


@functools.cache
def _ring():
    import torch

    aten = torch.ops.aten

    class Ring(torch.autograd.Function):
        """PyTorch's rounds, over the fused operators of mps."""

        @staticmethod
        def forward(ctx, query, key, value, cp, group, dropout_p, is_causal, scale):
            states = []  # of random numbers and the like, a round each

            def attend(q, k, v, is_causal):
                out, sums, *state, _ = aten._scaled_dot_product_fused_attention_overrideable(
                    q, k, v, None, dropout_p, is_causal, scale=scale
                )
                states.append(state)
                return out, sums

            out, sums = cp._templated_ring_attention(group, SEQUENCE, attend, query, key, value, is_causal)
            ctx.save_for_backward(query, key, value, out, sums)
            ctx.rest = (cp, group, dropout_p, is_causal, scale, states)
            return out

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            cp, group, dropout_p, is_causal, scale, states = ctx.rest
            rounds = iter(states)

            def attend(grad_out, query, key, value, out, logsumexp, is_causal):
                cum_q, cum_k, max_q, max_k, seed, offset = next(rounds)
                return aten._scaled_dot_product_fused_attention_overrideable_backward(
                    *(grad_out, query, key, value, None, [True, True, True, False], out, logsumexp),
                    *(cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset),
                    scale=scale,
                )

            query, key, value, out, sums = ctx.saved_tensors
            grads = cp._templated_ring_attention_backward(
                *(group, SEQUENCE, attend, grad, "grad_out", query, key, value, out, sums, is_causal)
            )
            return *grads[:3], *[None] * 5

    return Ring
