"""A second implementation of docs/reference/checkpoint.md: writes the golden checkpoint and verifies any.

    checkpoint.py write FOLDER SPEC.BINPB    writes the golden checkpoint; the spec's bytes are taken as they are
    checkpoint.py verify FOLDER              checks every hash and that every row is there once; prints each fault

Plain Python; the hash comes from libxxhash.
"""

import ctypes
import ctypes.util
import json
import os
import struct
import sys

CHUNK_BYTES = 64 << 10  # of the small files written here
MAX_CHUNK_BYTES = 4 << 20  # of files whose entry has no chunk_bytes
ELEMENT_BYTES = {'F64': 8, 'I64': 8, 'F32': 4, 'BF16': 2, 'F16': 2, 'I16': 2, 'F8_E4M3': 1, 'F8_E5M2': 1, 'U8': 1}


class Hash128(ctypes.Structure):
    _fields_ = [('low', ctypes.c_uint64), ('high', ctypes.c_uint64)]


library = ctypes.CDLL(ctypes.util.find_library('xxhash') or 'libxxhash.so.0')
library.XXH3_128bits_withSeed.restype = Hash128
library.XXH3_128bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]


def hash_of(data, seed=0):
    result = library.XXH3_128bits_withSeed(bytes(data), len(data), seed)
    return result.high << 64 | result.low


def text_of(number):
    return '%032x' % (number % 2**128)


def sum_of_rows(data, row_bytes, first_row):
    rows = range(len(data) // row_bytes)
    return sum(hash_of(data[i * row_bytes:(i + 1) * row_bytes], first_row + i) for i in rows) % 2**128


def joined(weights, remainders):
    """Returns the fp32 numbers of BF16 weights and their remainders."""
    count = len(weights) // 2
    pairs = zip(struct.unpack('<%dH' % count, weights), struct.unpack('<%dh' % count, remainders))
    return struct.pack('<%dI' % count, *(((w << 16) + r) % 2**32 for w, r in pairs))


class Tensor:
    """Some rows of a tensor."""

    def __init__(self, key, dtype, shape, first_row, data):
        self.key, self.dtype, self.shape, self.first_row, self.data = key, dtype, shape, first_row, data
        self.rows = shape[0] if len(shape) == 2 else 1

    def row_bytes(self):
        return len(self.data) // self.rows

    def chunk_sums(self, chunk_bytes=CHUNK_BYTES):
        size = max(1, chunk_bytes // self.row_bytes()) * self.row_bytes()
        return [sum_of_rows(self.data[at:at + size], self.row_bytes(), self.first_row + at // self.row_bytes())
                for at in range(0, len(self.data), size)]


def unsealed(text, problems):
    """Returns the object of a text that ends with its hash."""
    end, digits = text[-len('"\n}\n'):], text[-36:-4]
    if end != b'"\n}\n' or not text[:-36].endswith(b' "hash": "') or text_of(hash_of(text[:-36])).encode() != digits:
        problems.append('manifest.json: does not have its hash')
    return json.loads(text)


def sealed(value):
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)[:-len('\n}')] + ',\n "hash": "'
    return (text + text_of(hash_of(text.encode())) + '"\n}\n').encode()


def read_file(path):
    """Returns the bytes of the header with its length, and the tensors of a file."""
    with open(path, 'rb') as file:
        data = file.read()
    begin = 8 + struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:begin])
    offsets = json.loads(header.pop('__metadata__')['DCP_SHARDING_INFO'])
    tensors = []
    for key, info in sorted(header.items(), key=lambda item: item[1]['data_offsets']):
        first, last = info['data_offsets']
        tensors.append(Tensor(key, info['dtype'], info['shape'], offsets[key]['saved_offsets'][0],
                              data[begin + first:begin + last]))
    return data[:begin], tensors


def file_of(tensors, header_bytes=None):
    """Returns the bytes of a file, with the header padded to header_bytes, and its entry without a name."""
    tensors = sorted(tensors, key=lambda tensor: -ELEMENT_BYTES[tensor.dtype])
    info = {t.key: {'saved_offsets': [t.first_row, 0] if len(t.shape) == 2 else [0]} for t in tensors}
    compact = dict(separators=(',', ':'), ensure_ascii=False)
    header = {'__metadata__': {'DCP_SHARDING_INFO': json.dumps(info, sort_keys=True, **compact), 'format': 'pt'}}
    at = 0
    for tensor in tensors:
        header[tensor.key] = {'dtype': tensor.dtype, 'shape': tensor.shape, 'data_offsets': [at, at + len(tensor.data)]}
        at += len(tensor.data)
    text = json.dumps(header, **compact).encode()
    size = header_bytes - 8 if header_bytes else (len(text) + 7) // 8 * 8
    head = struct.pack('<Q', size) + text.ljust(size)
    sums = ''.join(text_of(chunk) for tensor in tensors for chunk in tensor.chunk_sums())
    data = head + b''.join(tensor.data for tensor in tensors)
    return data, {'bytes': len(data), 'header_bytes': len(head), 'header_hash': text_of(hash_of(head)),
                  'chunk_bytes': CHUNK_BYTES, 'chunk_sums': sums}


def verify(folder):
    problems = []
    with open(os.path.join(folder, 'manifest.json'), 'rb') as file:
        manifest = unsealed(file.read(), problems)
    with open(os.path.join(folder, 'spec.binpb'), 'rb') as file:
        spec = file.read()
    if len(spec) != manifest['spec']['bytes'] or text_of(hash_of(spec)) != manifest['spec']['hash']:
        problems.append('spec.binpb: does not have its hash')
    names = sorted(name for name in os.listdir(folder) if name.endswith('.safetensors'))
    if names != sorted(entry['name'] for entry in manifest['files']):
        problems.append('files differ from the manifest: %s' % names)
    parts = {}
    for entry in manifest['files']:
        header, tensors = read_file(os.path.join(folder, entry['name']))
        if text_of(hash_of(header)) != entry['header_hash'] or len(header) != entry['header_bytes']:
            problems.append('%s: the header does not have its hash' % entry['name'])
        if len(header) + sum(len(tensor.data) for tensor in tensors) != entry['bytes']:
            problems.append('%s: wrong size' % entry['name'])
        chunk_bytes = entry.get('chunk_bytes', MAX_CHUNK_BYTES)
        if not 1 <= chunk_bytes <= MAX_CHUNK_BYTES:
            problems.append('%s: chunks of %d bytes' % (entry['name'], chunk_bytes))
        if ''.join(text_of(chunk) for t in tensors for chunk in t.chunk_sums(chunk_bytes)) != entry['chunk_sums']:
            problems.append('%s: a chunk does not have its sum' % entry['name'])
        for tensor in tensors:
            parts.setdefault(tensor.key, []).append(tensor)
    whole = {}
    for key, tensors in parts.items():
        tensors.sort(key=lambda tensor: tensor.first_row)
        row = 0
        for tensor in tensors:
            if tensor.first_row != row:
                problems.append('%s: want row %d, got %d' % (key, row, tensor.first_row))
            row += tensor.rows
        whole[key] = Tensor(key, tensors[0].dtype, [row] + tensors[0].shape[1:], 0, b''.join(t.data for t in tensors))
    for key, entry in manifest['tensors'].items():
        tensor = whole.get(key)
        if tensor is None or tensor.rows != entry['rows']:
            problems.append('%s: want %d rows' % (key, entry['rows']))
            continue
        data, row_bytes = tensor.data, tensor.row_bytes()
        remainders = whole.get(key.replace('master/', 'remainder/', 1)) if key.startswith('master/') else None
        if remainders is not None:
            data, row_bytes = joined(data, remainders.data), 2 * row_bytes
        if text_of(sum_of_rows(data, row_bytes, 0)) != entry['hash']:
            problems.append('%s: wrong content hash' % key)
    return problems


def golden_bytes(key, size):
    return bytes((7 * i + 13 * len(key)) % 256 for i in range(size))


def write(folder, spec):
    """Two replicas of a model with w [3, 2], fp32, and h [2, 3], BF16 and remainder; both have FP32 moments."""
    arrays = {}
    for name, rows, columns in (('w', 3, 2), ('h', 2, 3)):
        dtypes = {'master': 'F32', 'exp_avg': 'F32', 'exp_avg_sq': 'F32'}
        if name == 'h':
            dtypes = {'master': 'BF16', 'remainder': 'I16', 'exp_avg': 'F32', 'exp_avg_sq': 'F32'}
        for prefix, dtype in dtypes.items():
            key = '%s/%s' % (prefix, name)
            arrays[key] = Tensor(key, dtype, [rows, columns], 0,
                                 golden_bytes(key, rows * columns * ELEMENT_BYTES[dtype]))
    files = {}
    for rank in range(2):
        tensors = []
        for tensor in arrays.values():
            first, last = rank * tensor.rows // 2, (rank + 1) * tensor.rows // 2
            tensors.append(Tensor(tensor.key, tensor.dtype, [last - first, tensor.shape[1]], first,
                                  tensor.data[first * tensor.row_bytes():last * tensor.row_bytes()]))
        state = ('rank %d' % rank).encode()
        # The header leaves room for the longest client state.
        longest = Tensor('client_state/%d' % rank, 'U8', [65536], 0, bytes(65536))
        header_bytes = file_of(tensors + [longest])[1]['header_bytes']
        tensors.append(Tensor('client_state/%d' % rank, 'U8', [len(state)], 0, state))
        files['rank-%05d-of-00002.safetensors' % rank] = file_of(tensors, header_bytes)
    files['common.safetensors'] = file_of([
        Tensor('numbers', 'I64', [3], 0, struct.pack('<3q', 12000, 11998, 2)),
        Tensor('last_answer', 'I64', [2], 0, struct.pack('<2q', 0, 0)),
        Tensor('last_answer.norm', 'F64', [1], 0, struct.pack('<d', 0.5)),
        Tensor('step_counts', 'I64', [2], 0, struct.pack('<2q', 11998, 11990)),
    ])
    tensors = {}
    for key, tensor in arrays.items():
        data, row_bytes = tensor.data, tensor.row_bytes()
        if key == 'master/h':
            data, row_bytes = joined(data, arrays['remainder/h'].data), 2 * row_bytes
        if not key.startswith('remainder/'):
            tensors[key] = {'rows': tensor.rows, 'hash': text_of(sum_of_rows(data, row_bytes, 0))}
    manifest = {
        'format': 'paramshard.checkpoint', 'format_version': 1, 'model': 'golden', 'save_id': text_of(0xabcdef),
        'save_serial': 7, 'saved_at': '2026-11-22T16:00:00.250Z', 'history': '0123456789abcdef0123456789abcdef',
        'step': 12000, 'version': 11998, 'parent': {'history': text_of(1), 'step': 9000},
        'world': {'size': 2, 'shard_size': 1},
        'spec': {'fingerprint': '0123456789abcdef', 'bytes': len(spec), 'hash': text_of(hash_of(spec))},
        'files': [dict(entry, name=name) for name, (_, entry) in files.items()], 'tensors': tensors}
    os.makedirs(folder, exist_ok=True)
    for name, (data, _) in files.items():
        with open(os.path.join(folder, name), 'wb') as file:
            file.write(data)
    for name, data in (('spec.binpb', spec), ('manifest.json', sealed(manifest))):
        with open(os.path.join(folder, name), 'wb') as file:
            file.write(data)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == 'write':
        with open(sys.argv[3], 'rb') as file:
            spec = file.read()
        return write(sys.argv[2], spec)
    if len(sys.argv) == 3 and sys.argv[1] == 'verify':
        problems = verify(sys.argv[2])
        print('\n'.join(problems) or 'whole')
        return 1 if problems else 0
    print(__doc__)
    return 2


if __name__ == '__main__':
    sys.exit(main())
