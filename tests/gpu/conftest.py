"""Without a GPU these tests are left out; AOQ_GPU=cpu runs them on the CPU, to test themselves."""

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    name = os.environ.get("AOQ_GPU", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch.device(name)
