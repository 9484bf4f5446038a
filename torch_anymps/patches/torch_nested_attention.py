"""Attention over jagged tensors on mps: a fused attention a sequence, where PyTorch makes strided nested tensors."""

import functools

WHY = "scaled_dot_product_attention takes jagged tensors on mps; PyTorch's own way there is a layout that refuses mps."
TARGETS = ("torch.nested._internal.sdpa", "torch.nested._internal.ops")
_NAME = "jagged_scaled_dot_product_attention"


def apply(module, replace):
    original = getattr(module, _NAME)
    if not hasattr(original, "__wrapped__"):  # ops has the function that sdpa had when it was imported
        from torch.nested._internal import sdpa

        replace(module, _NAME, _by_sequence(original, sdpa))


def _by_sequence(original, sdpa):
    """Where PyTorch would choose its math implementation, the only one that is not for CUDA alone."""
    from torch.nested._internal.nested_tensor import NestedTensor

    @functools.wraps(original)
    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        nested = all(isinstance(t, NestedTensor) for t in (query, key, value))
        if not nested or query.device.type != "mps" or attn_mask is not None or query._ragged_idx == 1:
            return original(query, key, value, attn_mask, **options)
        q, k, v, _ = sdpa._autocast(query, key, value, None)
        sdpa._validate_sdpa_input(q, k, v, None, dropout_p, is_causal, scale)
        if sdpa._select_sdp_backend(q, k, v, None, dropout_p, is_causal, enable_gqa) != sdpa.SDPBackend.MATH:
            return original(query, key, value, attn_mask, **options)
        return _attention(q, k, v, options)

    return attention


def _attention(query, key, value, options):
    """[batch, heads, ragged, width] each; the lengths of their sequences come to the host."""
    import torch
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

    rows = []
    for q, k, v in zip(*map(_sequences, (query, key, value)), strict=True):
        rows.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)[0].transpose(0, 1))
    return nested_view_from_values_offsets_lengths(
        torch.cat(rows),
        query.offsets(),
        lengths=query.lengths(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    ).transpose(1, 2)


def _sequences(nested):
    """A tensor [1, heads, length, width] of each sequence."""
    parts = nested.transpose(1, 2).values().split(nested.offsets().diff().tolist())
    return [part.transpose(0, 1).unsqueeze(0) for part in parts]
