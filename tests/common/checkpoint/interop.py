"""Opens a checkpoint with packages of other projects, and compares every byte.

    interop.py safetensors|torch|dtensor FOLDER EXPECTED.JSON

EXPECTED.JSON has each tensor as {key: {"dtype", "rows", "columns", "data": hexadecimal}}. Exit code 77: the package is
not installed here. For `safetensors` no PyTorch is needed.
"""

import json
import os
import sys

NOT_INSTALLED = 77
RANKS = 3


def bytes_of(tensor):
    import torch
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read_by_safetensors(folder, expected):
    """Reads every file alone and puts its rows where the file says. As bytes: numpy lacks some types."""
    from safetensors import deserialize, safe_open
    found = {key: bytearray(len(bytes.fromhex(entry['data']))) for key, entry in expected.items()}
    for name in sorted(os.listdir(folder)):
        if not name.endswith('.safetensors'):
            continue
        path = os.path.join(folder, name)
        with safe_open(path, framework='np') as file:
            info = json.loads(file.metadata()['DCP_SHARDING_INFO'])
        with open(path, 'rb') as file:
            tensors = deserialize(file.read())
        for key, tensor in tensors:
            if key not in expected:
                continue
            assert tensor['dtype'] == expected[key]['dtype'], key
            data = tensor['data']
            row_bytes = len(found[key]) // expected[key]['rows']
            begin = info[key]['saved_offsets'][0] * row_bytes
            found[key][begin:begin + len(data)] = data
    return {key: bytes(data) for key, data in found.items()}


def empty_tensors(expected):
    import torch
    types = {'F32': torch.float32, 'BF16': torch.bfloat16, 'F16': torch.float16, 'I16': torch.int16,
             'F8_E4M3': torch.float8_e4m3fn, 'F8_E5M2': torch.float8_e5m2, 'U8': torch.uint8}
    return {key: torch.zeros(entry['rows'], entry['columns'], dtype=types[entry['dtype']])
            for key, entry in expected.items()}


def read_by_torch(folder, expected):
    import torch.distributed.checkpoint as dcp
    state = empty_tensors(expected)
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder), no_dist=True)
    return {key: bytes_of(tensor) for key, tensor in state.items()}


def read_rank(rank, folder, expected, store):
    """Reads as one rank of a world in which every tensor is cut on its rows."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh
    dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh('cpu', (RANKS,))
    # Cuts as torch.chunk does. distribute_tensor does not work: its scatter lacks some types on gloo.
    state = {}
    for key, tensor in empty_tensors(expected).items():
        size = -(-len(tensor) // RANKS)
        local = tensor[rank * size:(rank + 1) * size].clone()
        state[key] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=tensor.shape,
                                        stride=tensor.stride())
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder))
    for key, tensor in state.items():
        row_bytes = len(bytes.fromhex(expected[key]['data'])) // expected[key]['rows']
        size = -(-expected[key]['rows'] // RANKS) * row_bytes
        part = bytes.fromhex(expected[key]['data'])[rank * size:(rank + 1) * size]
        assert bytes_of(tensor.to_local()) == part, '%s differs on rank %d' % (key, rank)
    dist.destroy_process_group()


def main():
    package, folder, path = sys.argv[1:]
    try:
        import safetensors  # noqa: F401
        if package != 'safetensors':
            import torch  # noqa: F401
    except ImportError as error:
        print(error)
        return NOT_INSTALLED
    with open(path) as file:
        expected = json.load(file)
    if package == 'dtensor':
        import torch.multiprocessing
        torch.multiprocessing.spawn(read_rank, (folder, expected, path + '.store'), RANKS)
        return 0
    found = {'safetensors': read_by_safetensors, 'torch': read_by_torch}[package](folder, expected)
    for key, entry in expected.items():
        if found[key] != bytes.fromhex(entry['data']):
            print('%s differs' % key)
            return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
