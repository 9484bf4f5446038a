"""Formulas for the operators of mps that PyTorch's counter of operations does not know."""

WHY = "FlopCounterMode counts fused attention, and linear's gradients, as it counts them on cuda and the CPU."
TARGETS = ("torch.utils.flop_counter",)


def apply(module, replace):
    aten = module.aten

    @module.shape_wrapper
    def linear_backward_flop(input_shape, grad_shape, weight_shape, wanted, *_, out_shape=None, **__) -> int:
        """Of grad @ weight and grad^T @ input, as far as they are wanted."""
        rows = module.prod(input_shape[:-1])
        return sum(map(bool, wanted[:2])) * 2 * rows * module.prod(weight_shape)

    formulas = {
        aten.linear_backward: linear_backward_flop,
        aten._scaled_dot_product_fused_attention_overrideable: module.sdpa_flop,
        aten._scaled_dot_product_fused_attention_overrideable_backward: module.sdpa_backward_flop,
    }
    replace(module, "flop_registry", module.flop_registry | formulas)
