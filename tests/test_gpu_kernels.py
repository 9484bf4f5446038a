"""The kernels that only GPUs get (barriers, shared memory, whole workgroups) on whatever driver there is: other files'
tests again, with ANYMPS_KERNELS=gpu."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "file, tests",
    [
        ("test_sort_scan.py", "(chunks and shape1) or median or place"),
        pytest.param("test_sort_scan.py", "ties and 1500 or selection and dtype0-5000", marks=pytest.mark.long),
        ("test_indexing.py", "nonzero or masked"),
        pytest.param("test_indexing.py", "embedding", marks=pytest.mark.long),
        ("test_softmax.py", "float32 or any_address"),
        ("test_ctc_loss.py", "not large"),
        pytest.param("test_torchvision.py", "nms", marks=pytest.mark.long),
        pytest.param("test_fft.py", "", marks=pytest.mark.long),
        pytest.param("test_planes.py", "", marks=pytest.mark.long),
        pytest.param("test_linalg.py", "cholesky or solve", marks=pytest.mark.long),
    ],
)
def test_with_barriers(file, tests, passes):
    passes(file, tests, ANYMPS_KERNELS="gpu", ANYMPS_CAPS="no-matrices")
