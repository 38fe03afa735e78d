"""Memory of several tensors, which comes and goes by one allocation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paramshard.torch.torch_internals import storage_of

_ALIGNMENT = 256  # of tensors in a block, in bytes, as torch allocates: kernels and compilers may rely on it


class MemoryBlock:
    """Puts tensors beside each other. They stay the objects that they are, with versions of their own.

    The tensors and their views have memory from allocate() to release(). Autograd and compiled graphs hold the tensors,
    so they must be the same objects every time.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device):
        """Discards the values of the tensors."""
        self.offsets: list[int] = []  # of each, in bytes
        self._bytes = 0
        self._device = device
        for tensor in tensors:
            self.offsets.append(self._bytes)
            # No two begin at one place, not even empty ones.
            self._bytes += max(1, -(-tensor.nbytes // _ALIGNMENT)) * _ALIGNMENT
        self.move(tensors)
        self.release()

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        """Moves the tensors into new memory, without their values; the present memory stays with its other holders.

        `tensors`: of the same sizes as in the constructor.
        """
        whole = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
        for tensor, offset in zip(tensors, self.offsets):
            values = whole[offset:offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            torch.Tensor.data.__set__(tensor, values)
        self._storage = whole.untyped_storage()
        self.storage = place_of(whole)[0]

    @property
    def is_shared(self) -> bool:
        """True if the memory cannot be given back, because an array of NumPy has it."""
        return not self._storage.resizable()

    def allocate(self) -> int:
        """Returns the address of the memory, which is to be written on the current stream."""
        if self._storage.nbytes() != self._bytes:
            self._storage.resize_(self._bytes)
        return self._storage.data_ptr()

    def release(self) -> None:
        self._storage.resize_(0)


def place_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the tensor's storage, by its id, and the byte in it where the tensor begins."""
    return storage_of(tensor), tensor.storage_offset() * tensor.element_size()
