"""The kernels that only GPUs get (barriers, shared memory, whole workgroups) on whatever driver there is: other files'
tests again, with ANYMPS_KERNELS=gpu."""

from __future__ import annotations

import pytest

CASES = [
    ("test_sort_scan.py", "(chunks and shape1) or one_tile or median or place"),
    ("test_sort_scan.py", "ties and 1500 or selection and dtype0-5000 or distinct and dtype0"),
    ("test_indexing.py", "nonzero or masked"),
    ("test_indexing.py", "embedding"),
    ("test_indexed_rows.py", ""),
    ("test_embedding_bag.py", "max"),
    ("test_pointwise_strided.py", ""),
    ("test_softmax.py", "float32 or any_address or words or equal"),
    ("test_ctc_loss.py", "not large"),
    ("test_torchvision.py", "nms"),
    ("test_fft.py", ""),
    ("test_planes.py", ""),
    ("test_linalg.py", "cholesky or solve or (nan and 70)"),
    ("test_math.py", "long_rows and (layer or var or std)"),
    ("test_norm.py", "batch_norm"),
    ("test_norm.py", "words or far or (layer_norm and 70)"),
    ("test_autocast_norm.py", "words or address"),
    ("test_pool.py", "words"),
    ("test_reduction.py", "(var or std) and (shapes or strides or large or far)"),
    ("test_attention.py", "words or least or dropout and True-dtype0"),  # fused ones compile for long
    ("test_attention.py", "inference"),
    ("test_matmul.py", "few_rows and float32"),
    ("test_quantized_mm.py", "int8_weights and shape2-dtype0"),
    ("test_sparse_compressed.py", "sampled"),
    ("test_product_norm.py", "far or (case3 and shape3-types1-True) or (case2 and shape1-types0-False)"),
    ("test_cross_entropy.py", "rows or kernel"),
    ("test_reduction.py", "of_words or in_words or short_rows"),
    ("test_generator.py", "dropout"),
    ("test_strided_copy.py", ""),
    ("test_search.py", "special or 65536 or 131073 or 262144 or 262145"),
    ("test_foreach.py", "norm or layouts or numbers or address"),
    ("test_optimizer.py", "fused or mixed"),
    ("test_rnn.py", "tiles or low_precision or (padded and RNN)"),
    ("test_complex_half.py", "sizes and (sum or norm or add or matmul) and not shape2"),
    ("inductor/test_compiled_reductions.py", "of_long_rows or shifted or few or long_sums or equal_numbers"),
]


@pytest.mark.parametrize("file, tests", CASES)
def test_with_barriers(file, tests, passes):
    passes(file, tests, ANYMPS_KERNELS="gpu", ANYMPS_CAPS="no-matrices")
