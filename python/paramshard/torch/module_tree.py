"""The modules and parameters inside a module, and whether they are still the same objects."""

from __future__ import annotations

from torch import nn

from paramshard._core import are_objects_in, objects_in


class ModuleTree:
    """A module as it is now. One native call looks at it again."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._objects = objects_in(module)
        self.modules = frozenset(module.modules())

    def is_present(self) -> bool:
        """Returns False after a module or a parameter was added, removed or replaced, anywhere."""
        return are_objects_in(self._module, self._objects)
