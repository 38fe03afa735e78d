"""Writes a state as trainings with PyTorch do: every rank its rows, by HuggingFaceStorageWriter(save_distributed=True).

    torch_writer.py FOLDER EXPECTED.JSON [columns]

FOLDER gets the files of three ranks. Tensors are cut unevenly, one has fewer rows than there are ranks, one is whole on
all of them; with `columns` one is cut on its second dimension. EXPECTED.JSON gets each tensor's shape and its elements
as float32, {key: {"shape", "data": hexadecimal}}. Exit code 77: a package is not installed here.
"""

import json
import sys

NOT_INSTALLED = 77
RANKS = 3


def whole_tensors():
    """Returns tensors whose elements all have different bits, each with whether its rows are cut."""
    import torch
    generator = torch.Generator().manual_seed(11)

    def draw(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(dtype)
    return {'big.weight': (draw(1000, 257), True), 'half.weight': (draw(10, 6, dtype=torch.float16), True),
            'brain.weight': (draw(7, 8, dtype=torch.bfloat16), True), 'few.weight': (draw(2, 5), True),
            'experts.weight': (draw(4, 3, 2), True), 'bias': (draw(11), True), 'norm': (draw(5), False)}


def write_rank(rank, folder, store, cut_columns):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh
    dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh('cpu', (RANKS,))
    state = {}
    for key, (tensor, cut) in whole_tensors().items():
        dimension = 1 if cut_columns and key == 'half.weight' else 0
        # Cuts like torch.chunk. distribute_tensor needs a scatter, which gloo lacks for some types.
        size = -(-tensor.shape[dimension] // RANKS)
        begin = min(rank * size, tensor.shape[dimension])
        local = tensor.narrow(dimension, begin, min(size, tensor.shape[dimension] - begin)).contiguous()
        state[key] = tensor if not cut else DTensor.from_local(
            local, mesh, [Shard(dimension)], run_check=False, shape=tensor.shape, stride=tensor.stride())
    # Two files of each rank: one for the big tensor, one for the others.
    files = {key: 1 if key == 'big.weight' else 2 for key in state}
    writer = dcp.HuggingFaceStorageWriter(folder, fqn_to_index_mapping=files, save_distributed=True)
    dcp.save(state, storage_writer=writer)
    dist.destroy_process_group()


def main():
    folder, path, *more = sys.argv[1:]
    try:
        import safetensors  # noqa: F401
        import torch.multiprocessing
    except ImportError as error:
        print(error)
        return NOT_INSTALLED
    torch.multiprocessing.spawn(write_rank, (folder, path + '.store', more == ['columns']), RANKS)
    with open(path, 'w') as file:
        json.dump({key: {'shape': list(tensor.shape), 'data': tensor.to(torch.float32).numpy().tobytes().hex()}
                   for key, (tensor, _) in whole_tensors().items()}, file)
    return 0


if __name__ == '__main__':
    sys.exit(main())
