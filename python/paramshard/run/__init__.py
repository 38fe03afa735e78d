"""Launcher of trainings, with torchrun's arguments: python -m paramshard.run --nproc-per-node=2 train.py

Workers are forked from a process that has imported what they need. A worker that dies is replaced alone where the
others' training functions have `paramshard.torch.resume_in_process` around them; else all are replaced.

Layers: `__main__` reads the arguments; `agent` decides, as torchrun's agent does; `workers` has the processes of one
node; `zygote_process` is the agent's end of `zygote`, the process that forks. `script_imports` finds what that imports.
A fork becomes a `worker`, or one of the `spares`, which `warm_up` prepares on a GPU; `channel` connects it to the agent,
by `messages`. `torch_elastic` has the parts of torchrun that have no public name.
"""
