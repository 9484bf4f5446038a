"""What is said of graphs whose modules the backend does not write."""

import pytest
import torch
from torch._inductor import config
from torch._inductor.utils import fresh_cache


def test_modules_in_cpp_are_refused_with_a_sentence(mps):
    torch._dynamo.reset()
    with fresh_cache(), config.patch(cpp_wrapper=True), pytest.raises(Exception, match="are not supported on mps"):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3, device="mps"))
