import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Arrays of ten numbers: more threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
