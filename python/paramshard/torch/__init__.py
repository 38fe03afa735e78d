"""PyTorch modules whose parameters and optimizer live in the daemon.

    import paramshard.torch as pt

    with pt.meta_init():
        model = Model()
    sharded = pt.shard(model, name="run7", units=[*model.layers, model], format="FP8_BLOCK_128X128",
                       param_dtype=torch.bfloat16)
    optimizer = pt.AdamW(pt.decay_groups(model, 0.1), lr=3e-4, max_grad_norm=1.0)
    for step in range(sharded.start_step(), steps):
        model(next(batches)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

Started again by torchrun after a crash, the same script goes on from the step that the daemon has.
"""

from paramshard.torch.follow import Follower, follow
from paramshard.torch.initial_values import meta_init
from paramshard.torch.optimizer import decay_groups
from paramshard.torch.optimizers import SGD, AdamW, Lion, Muon
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.resume import resume_in_process
from paramshard.torch.shard import shard
from paramshard.torch.sharded_model import ShardedModel

__all__ = ["SGD", "AdamW", "Follower", "Lion", "Muon", "Placeholder", "ShardedModel", "decay_groups", "follow",
           "meta_init", "resume_in_process", "shard"]
