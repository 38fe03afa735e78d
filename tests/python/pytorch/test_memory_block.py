"""Tensors whose memory comes and goes together."""

import torch

from paramshard.torch.memory_block import MemoryBlock, place_of


def test_tensors_stay_the_same_and_their_memory_comes_and_goes():
    tensors = [torch.nn.Parameter(torch.empty(3, 5)), torch.empty(7, dtype=torch.bfloat16), torch.empty(0, 4),
               torch.empty((), dtype=torch.float16), torch.empty(2, 2)]
    block = MemoryBlock(tensors, torch.device("cpu"))
    assert all(not tensor.untyped_storage().nbytes() for tensor in tensors)
    for _ in range(2):
        address = block.allocate()
        assert block.allocate() == address, "what is there stays"
        assert [tensor.data_ptr() - address for tensor in tensors if tensor.numel()] == [
            offset for tensor, offset in zip(tensors, block.offsets) if tensor.numel()]
        for number, tensor in enumerate(tensors):
            tensor.data.fill_(number)
        assert [tensor.float().unique().tolist() for tensor in tensors] == [[0], [1], [], [3], [4]]
        block.release()
        assert not tensors[4].untyped_storage().nbytes()
    assert isinstance(tensors[0], torch.nn.Parameter) and tensors[0].is_leaf
    assert len({place_of(tensor) for tensor in tensors}) == len(tensors)


def test_a_change_of_one_tensor_is_none_of_another():
    tensors = [torch.nn.Parameter(torch.empty(2)), torch.nn.Parameter(torch.empty(2))]
    block = MemoryBlock(tensors, torch.device("cpu"))
    block.allocate()
    before = [tensor._version for tensor in tensors]
    torch.autograd.graph.increment_version([tensors[0]])
    with torch.no_grad():
        tensors[0].add_(1)
    assert tensors[0]._version > before[0] and tensors[1]._version == before[1]
