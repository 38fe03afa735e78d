#!/usr/bin/env python3
"""A second implementation of docs/reference/numerics.md, slow and plain, and the golden cases against it.

  reference.py            computes every output of every case from its inputs, and compares bytes
  reference.py --write    writes the outputs instead

Inputs (inputs/*.npy; the states, gradients and amaxes that cases begin with) are data. Nothing but Python's own library
is needed. It shares no trick with the sources: a cast looks for the nearest value in a table, and a float32 operation is
the double one, rounded, which is the same for +, -, *, / and the square root, as a double has more than twice the bits.
"""

import argparse
import array
import bisect
import ctypes
import json
import math
import pathlib
import struct
import sys

DIRECTORY = pathlib.Path(__file__).resolve().parent
FLOAT_MAX = 3.4028234663852886e38
NAN_BITS = 0x7FC00000
DECODED_LIMIT = 3000  # larger inputs have no decoded arrays


# --- float32


def f32(value):
    """Rounds a double."""
    return ctypes.c_float(value).value


def bits_of(value):
    return NAN_BITS if math.isnan(value) else struct.unpack("<I", struct.pack("<f", value))[0]


def from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def divide(a, b):
    if b != 0 or math.isnan(a):
        return f32(a / b)
    return math.nan if a == 0 else math.copysign(math.inf, a) * math.copysign(1.0, b)


def root(value):
    return f32(math.sqrt(value)) if value >= 0 else math.nan


def cap(value):
    return min(value, FLOAT_MAX) if not math.isnan(value) else value


def amax_of(values):
    return max((abs(v) for v in values if not math.isnan(v)), default=0.0)


# --- Element types


class Element:
    """A float of few bits: `count` finite codes without sign, which ascend."""

    def __init__(self, mantissa_bits, bias, count, sign, nan):
        def value(code):
            exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
            if exponent == 0:
                return math.ldexp(mantissa, 1 - bias - mantissa_bits)
            return math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)

        self.values = [value(code) for code in range(count)]
        self.midpoints = [(a + b) / 2 for a, b in zip(self.values, self.values[1:])]
        self.max = self.values[-1]
        self.sign = sign
        self.nan = nan

    def encode(self, value):
        if math.isnan(value):
            return self.nan
        magnitude = abs(value)
        code = bisect.bisect_left(self.midpoints, magnitude)
        if code < len(self.midpoints) and self.midpoints[code] == magnitude:
            code += code % 2  # a tie: the even one
        return code | (self.sign if math.copysign(1.0, value) < 0 else 0)

    def decode(self, code):
        magnitude = code & (self.sign - 1)
        if magnitude < len(self.values):
            value = self.values[magnitude]
        else:
            value = math.inf if self is E5M2 and magnitude == 0x7C else math.nan
        return -value if code & self.sign else value


E4M3 = Element(3, 7, 0x7F, 0x80, 0x7F)
E5M2 = Element(2, 15, 0x7C, 0x80, 0x7F)
E2M1 = Element(1, 1, 8, 0x8, 0x7)
ELEMENTS = {"E4M3": E4M3, "E5M2": E5M2, "E2M1": E2M1}


def encode_bf16(value):
    if math.isnan(value):
        return 0x7FFF
    bits = bits_of(value)
    lower = bits & 0xFFFF
    upper = bits >> 16
    return upper + (1 if lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1) else 0)


def decode_bf16(code):
    return from_bits(code << 16)


def encode_e8m0(value):
    """Encodes value >= 0, rounded up to a power of two."""
    if math.isnan(value):
        return 255
    if math.isinf(value):
        return 254
    fraction, exponent = math.frexp(value)
    if fraction == 0.5:
        exponent -= 1
    return min(254, max(0, exponent + 127)) if value > 0 else 0


def decode_e8m0(code):
    return math.nan if code == 255 else math.ldexp(1.0, code - 127)


def e8m0_multiplier(code):
    if code == 255:
        return math.nan
    return math.ldexp(1.0, 127 - code)


# --- Planes


def ceil_divide(size, step):
    return -(-size // step)


class Blocks:
    """The blocks of rows x cols elements that share a scale, clipped at the edges."""

    def __init__(self, rows, cols, block_rows, block_cols):
        self.rows, self.cols, self.block_rows, self.block_cols = rows, cols, block_rows, block_cols
        self.across = ceil_divide(cols, block_cols)

    def __iter__(self):
        for row in range(0, self.rows, self.block_rows):
            for col in range(0, self.cols, self.block_cols):
                yield [
                    r * self.cols + c
                    for r in range(row, min(row + self.block_rows, self.rows))
                    for c in range(col, min(col + self.block_cols, self.cols))
                ]


def compute_scale(amax, element_max, power_of_two):
    if amax == 0 or math.isinf(amax):
        return 1.0
    scale = cap(divide(element_max, amax))
    return from_bits(bits_of(scale) & 0x7F800000) if power_of_two else scale


def scale_blocks(matrix, blocks, element, power_of_two):
    codes, scales, decoded = bytearray(len(matrix)), [], [0.0] * len(matrix)
    for block in blocks:
        scale = compute_scale(amax_of(matrix[i] for i in block), element.max, power_of_two)
        scale_inv = divide(1.0, scale)
        scales.append(scale_inv)
        for i in block:
            codes[i] = element.encode(f32(matrix[i] * scale))
            decoded[i] = f32(element.decode(codes[i]) * scale_inv)
    return codes, scales, decoded


def scale_tensor(matrix, scale, element):
    scale_inv = divide(1.0, scale)
    codes = bytearray(element.encode(f32(x * scale)) for x in matrix)
    return codes, scale_inv, [f32(element.decode(code) * scale_inv) for code in codes]


def scale_e8m0(matrix, blocks, element):
    codes, scales, decoded = bytearray(len(matrix)), bytearray(), [0.0] * len(matrix)
    reciprocal = divide(1.0, element.max)
    for block in blocks:
        scale = encode_e8m0(f32(amax_of(matrix[i] for i in block) * reciprocal))
        multiplier, factor = e8m0_multiplier(scale), decode_e8m0(scale)
        scales.append(scale)
        for i in block:
            codes[i] = element.encode(f32(matrix[i] * multiplier))
            decoded[i] = f32(element.decode(codes[i]) * factor)
    return codes, scales, decoded


def scale_nvfp4(matrix, rows, cols):
    amax = amax_of(matrix)
    tensor_scale = 1.0 if amax == 0 else cap(divide(2688.0, amax))
    tensor_scale = 1.0 if tensor_scale == 0 else tensor_scale
    codes, scales, decoded = bytearray(len(matrix)), bytearray(), [0.0] * len(matrix)
    sixth, last = f32(1 / 6), f32(1 / 2688)
    least = divide(2688.0, FLOAT_MAX)
    decode_amax = least if 2.0**-126 <= amax < least else amax
    for block in Blocks(rows, cols, 16, 16):
        block_amax = amax_of(matrix[i] for i in block)
        scale = E4M3.encode(cap(f32(block_amax * f32(tensor_scale * sixth))))
        factor = E4M3.decode(scale)
        multiplier = cap(divide(1.0, f32(factor * divide(1.0, tensor_scale))))
        scales.append(scale)
        for i in block:
            codes[i] = E2M1.encode(f32(matrix[i] * multiplier))
            decoded[i] = f32(f32(f32(E2M1.decode(codes[i]) * factor) * decode_amax) * last)
    packed = bytearray()
    for row in range(rows):
        line = codes[row * cols : (row + 1) * cols] + bytes(cols % 2)
        packed += bytes(low | high << 4 for low, high in zip(line[::2], line[1::2]))
    return packed, scales, amax, decoded


def quantize(case, matrix):
    """Returns the planes of a matrix, by role."""
    rows, cols, options = case["M"], case["K"], case["options"]
    element = ELEMENTS[case["element"]]
    outputs = {}
    if case["format"] in ("FP8_TENSOR_CURRENT", "FP8_TENSOR_DELAYED"):
        amax = amax_of(matrix)
        scale = options["scale"] if "scale" in options else compute_scale(amax, element.max, options.get("pow2", False))
        codes, scale_inv, decoded = scale_tensor(matrix, scale, element)
        outputs = {"row_data": codes, "scale_inv": floats([scale_inv]), "amax": floats([amax])}
    elif case["format"] == "FP8_BLOCK_128X128":
        blocks = Blocks(rows, cols, 128, 128)
        codes, scales, decoded = scale_blocks(matrix, blocks, element, options.get("pow2", True))
        outputs = {"row_data": codes, "scale_inv": floats(scales)}
    elif case["format"] == "MXFP8":
        codes, scales, decoded = scale_e8m0(matrix, Blocks(rows, cols, 1, 32), element)
        outputs = {"row_data": codes, "row_scale": scales}
        codes, scales, decoded_columns = scale_e8m0(matrix, Blocks(rows, cols, 32, 1), element)
        outputs |= {"col_data": codes, "col_scale": scales, "dequantized_columns": floats(decoded_columns)}
    elif case["format"] == "MXFP8_2D":
        codes, scales, decoded = scale_e8m0(matrix, Blocks(rows, cols, 32, 32), element)
        outputs = {"row_data": codes, "row_scale": scales}
    elif case["format"] == "NVFP4_2D":
        codes, scales, amax, decoded = scale_nvfp4(matrix, rows, cols)
        outputs = {"row_data": codes, "row_scale": scales, "amax": floats([amax])}
    else:
        raise ValueError(f"{case['name']}: unknown format {case['format']}")
    return outputs | {"dequantized": floats(decoded)}


# --- The optimizer


def split_master(value):
    bits = bits_of(value)
    low = bits & 0xFFFF
    return ((bits >> 16) + (1 if low >= 0x8000 else 0)) & 0xFFFF, low - 0x10000 if low >= 0x8000 else low


def join_master(weight, remainder):
    return from_bits((((weight - (1 if remainder < 0 else 0)) & 0xFFFF) << 16) | (remainder & 0xFFFF))


class BlockMoments:
    """Moments in E4M3, in blocks of 128 elements of a row; exp_avg_sq as its root."""

    def __init__(self, rows, cols, is_square):
        self.blocks, self.is_square = Blocks(rows, cols, 1, 128), is_square

    def encode(self, values):
        codes, scales = bytearray(len(values)), []
        for block in self.blocks:
            stored = {i: root(values[i]) if self.is_square else values[i] for i in block}
            scale_inv = divide(amax_of(stored.values()), E4M3.max)
            if scale_inv == 0 or math.isinf(scale_inv):
                scale_inv = 1.0
            scales.append(scale_inv)
            for i in block:
                codes[i] = E4M3.encode(divide(stored[i], scale_inv))
        return codes, scales

    def decode(self, codes, scales):
        values = [0.0] * len(codes)
        for block, scale_inv in zip(self.blocks, scales):
            for i in block:
                value = f32(E4M3.decode(codes[i]) * scale_inv)
                values[i] = f32(value * value) if self.is_square else value
        return values


def read_state(case, name, kind):
    files = case["files"]
    if kind == "fp32":
        return list(read(files[name], "f"))
    if kind == "bf16":
        return [decode_bf16(code) for code in read(files[name + "_bf16"], "H")]
    if kind == "bf16_remainder":
        return [join_master(*pair) for pair in zip(read(files[name + "_bf16"], "H"), read(files[name + "_remainder"], "h"))]
    moments = BlockMoments(case["M"], case["K"], name == "exp_avg_sq")
    return moments.decode(read(files[name + "_data"], "B"), read(files[name + "_scale_inv"], "f"))


def store_state(case, name, kind, values):
    """Returns the stored arrays of the values by role, and the values that the next step reads from them."""
    if kind == "fp32":
        return {name: floats(values)}, values
    if kind == "bf16":
        codes = [encode_bf16(v) for v in values]
        return {name + "_bf16": pack("H", codes)}, [decode_bf16(code) for code in codes]
    if kind == "bf16_remainder":
        halves = [split_master(v) for v in values]
        return {
            name + "_bf16": pack("H", [weight for weight, _ in halves]),
            name + "_remainder": pack("h", [remainder for _, remainder in halves]),
        }, values
    moments = BlockMoments(case["M"], case["K"], name == "exp_avg_sq")
    codes, scales = moments.encode(values)
    return {name + "_data": codes, name + "_scale_inv": floats(scales)}, moments.decode(codes, scales)


def adam_element(options, step, g, p, m, v):
    beta1, beta2, decay = options["beta1"], options["beta2"], options["weight_decay"]
    if options["optimizer"] == "adam":
        g = f32(g + f32(decay * p))
    m = f32(f32(beta1 * m) + f32(f32(1 - beta1) * g))
    v = f32(f32(beta2 * v) + f32(f32(f32(1 - beta2) * g) * g))
    denominator = f32(root(divide(v, step["bias_correction2"])) + options["eps"])
    change = divide(divide(m, step["bias_correction1"]), denominator)
    if options["optimizer"] == "adamw":
        change = f32(change + f32(decay * p))
    return f32(p - f32(step["lr"] * change)), m, v


def sgd_element(options, step, g, p, m, v):
    g = f32(g + f32(options["weight_decay"] * p))
    if options["optimizer"] == "sgd":
        return f32(p - f32(step["lr"] * g)), m, v
    dampening = 0.0 if step["step"] == 1 else options["dampening"]
    m = f32(f32(options["momentum"] * m) + f32(f32(1 - dampening) * g))
    change = f32(g + f32(options["momentum"] * m)) if options["optimizer"] == "sgd_nesterov" else m
    return f32(p - f32(step["lr"] * change)), m, v


def lion_element(options, step, g, p, m, v):
    beta1, beta2 = options["beta1"], options["beta2"]
    direction = f32(f32(beta1 * m) + f32(f32(1 - beta1) * g))
    sign = direction if direction == 0 or math.isnan(direction) else math.copysign(1.0, direction)
    kept = f32(p * f32(1 - f32(step["lr"] * options["weight_decay"])))
    return f32(kept - f32(step["lr"] * sign)), f32(f32(beta2 * m) + f32(f32(1 - beta2) * g)), v


ELEMENT_STEPS = {
    "adamw": adam_element,
    "adam": adam_element,
    "sgd": sgd_element,
    "sgd_momentum": sgd_element,
    "sgd_nesterov": sgd_element,
    "lion": lion_element,
}


def step(case):
    options = case["options"]
    kinds = {"param": options["master"], "exp_avg": options["exp_avg"], "exp_avg_sq": options["exp_avg_sq"]}
    state = {name: read_state(case, name, kind) for name, kind in kinds.items()}
    gradients = read(case["files"]["grad"], "f")
    count = len(state["param"])
    outputs = {}
    update = ELEMENT_STEPS[options["optimizer"]]
    for t, step in enumerate(options["steps"]):
        scale = f32(step["inv_scale"] * step["clip_coef"])
        for beta, correction in (("beta1", "bias_correction1"), ("beta2", "bias_correction2")):
            expected = (f32(1 - math.pow(options[beta], step["step"])), 1.0)  # 1 without bias correction
            assert step[correction] in expected, f"{case['name']}: {correction} of step {step['step']}"
        rows = zip(gradients[t * count : (t + 1) * count], state["param"], state["exp_avg"], state["exp_avg_sq"])
        fresh = [update(options, step, f32(gradient * scale), *element) for gradient, *element in rows]
        for index, (name, kind) in enumerate(kinds.items()):
            stored, state[name] = store_state(case, name, kind, [element[index] for element in fresh])
            for role, data in stored.items():
                outputs["expected_" + role] = outputs.get("expected_" + role, b"") + data
    if case["kind"] == "step_and_quantize":
        outputs |= quantize(case, state["param"])
    return outputs


# --- Muon's step


def lerp(start, end, weight):
    difference = f32(end - start)
    if weight < 0.5:
        return f32(start + f32(weight * difference))
    return f32(end - f32(difference * f32(1 - weight)))


def rounded(value):
    return decode_bf16(encode_bf16(value))


def multiply(left, right):
    """left right^T, of rows; each sum from the first term to the last."""

    def sum_of_products(row, other):
        total = 0.0
        for a, b in zip(row, other):
            total = f32(total + f32(a * b))
        return total

    return [[sum_of_products(row, other) for other in right] for row in left]


def transpose(rows):
    return [list(column) for column in zip(*rows)]


def orthogonalize(rows, coefficients, eps):
    if len(rows) > len(rows[0]):
        return transpose(orthogonalize(transpose(rows), coefficients, eps))
    norm = max(rounded(f32(math.sqrt(math.fsum(x * x for row in rows for x in row)))), rounded(eps))
    x = [[rounded(f32(value / norm)) for value in row] for row in rows]
    for a, b, c in coefficients:
        gram = [[rounded(v) for v in row] for row in multiply(x, x)]
        squares = multiply(gram, gram)
        polynomial = [[rounded(f32(f32(c * s) + f32(b * g))) for s, g in zip(*both)] for both in zip(squares, gram)]
        products = multiply(polynomial, transpose(x))
        x = [[rounded(f32(s + f32(a * v))) for s, v in zip(*both)] for both in zip(products, x)]
    return x


def muon_step(case):
    options, columns = case["options"], case["K"]
    masters, momentum = read_state(case, "param", "fp32"), read_state(case, "exp_avg", options["exp_avg"])
    count = len(masters)
    gradients = read(case["files"]["grad"], "f")
    mu = options["momentum"]
    outputs = {}
    for t, step in enumerate(options["steps"]):
        scale = f32(step["inv_scale"] * step["clip_coef"])
        scaled = [f32(gradient * scale) for gradient in gradients[t * count : (t + 1) * count]]
        fresh = [lerp(m, g, f32(1 - mu)) for m, g in zip(momentum, scaled)]
        stored, momentum = store_state(case, "exp_avg", options["exp_avg"], fresh)
        direction = momentum
        if options["optimizer"] == "muon_nesterov":
            direction = [lerp(g, m, mu) for g, m in zip(scaled, momentum)]
        direction = [rounded(u) for u in direction]
        rows = [direction[first : first + columns] for first in range(0, count, columns)]
        update = [x for row in orthogonalize(rows, options["coefficients"], options["eps"]) for x in row]
        kept = f32(1 - step["lr"] * options["weight_decay"])
        rate = f32(step["lr"] * options["rate_factor"])
        masters = [f32(f32(p * kept) - f32(rate * x)) for p, x in zip(masters, update)]
        stored |= {
            "direction": pack("H", [encode_bf16(u) for u in direction]),
            "update": pack("H", [encode_bf16(x) for x in update]),
            "param": floats(masters),
        }
        for role, data in stored.items():
            outputs["expected_" + role] = outputs.get("expected_" + role, b"") + data
    return outputs


# --- The other kinds


def elements(case):
    values = read(case["files"]["input"], "f")
    return {
        "e4m3": bytes(E4M3.encode(v) for v in values),
        "e5m2": bytes(E5M2.encode(v) for v in values),
        "e2m1": bytes(E2M1.encode(v) for v in values),
        "bf16": pack("H", [encode_bf16(v) for v in values]),
        "e8m0_round_up_of_abs": bytes(encode_e8m0(abs(v)) for v in values),
        "e4m3_values": floats([E4M3.decode(code) for code in range(256)]),
        "e5m2_values": floats([E5M2.decode(code) for code in range(256)]),
        "e2m1_values": floats([E2M1.decode(code) for code in range(16)]),
        "e8m0_values": floats([decode_e8m0(code) for code in range(256)]),
        "e8m0_encode_multipliers": floats([e8m0_multiplier(code) for code in range(256)]),
    }


def delayed_scale_update(case):
    options = case["options"]
    element_max = ELEMENTS[case["element"]].max
    scale, history, scales, histories = options["initial_scale"], [0.0] * options["history_length"], [], []
    for amax in read(case["files"]["amax"], "f"):
        history = [amax] + history[:-1]
        largest = math.nan if any(math.isnan(a) for a in history) else max(history)
        picked = largest if options["algorithm"] == "max" else amax
        if picked != 0 and math.isfinite(picked):
            scale = cap(divide(f32(element_max * math.ldexp(1.0, -options["margin"])), picked))
        scales.append(scale)
        histories += history
    return {"scale": floats(scales), "history": floats(histories)}


def param_remainder(case):
    halves = [split_master(from_bits(bits)) for bits in read(case["files"]["input"], "I")]
    return {"bf16": pack("H", [h[0] for h in halves]), "remainder": pack("h", [h[1] for h in halves])}


def fp8_state(case):
    outputs = {}
    for name in ("exp_avg", "exp_avg_sq"):
        moments = BlockMoments(case["M"], case["K"], name == "exp_avg_sq")
        codes, scales = moments.encode(read(case["files"][name], "f"))
        outputs |= {name + "_data": codes, name + "_scale_inv": floats(scales)}
        outputs[name + "_decoded"] = floats(moments.decode(codes, scales))
    return outputs


def gradient_sum(case):
    count = case["M"] * case["K"]
    values = read(case["files"]["gradients"], "f")
    ranks = [values[first : first + count] for first in range(0, len(values), count)]

    def add(arrays):
        total = arrays[0]
        for more in arrays[1:]:
            total = [f32(a + b) for a, b in zip(total, more)]
        return total

    per_group = case["options"]["ranks_per_group"]
    sums = add([add(ranks[first : first + per_group]) for first in range(0, len(ranks), per_group)])
    return {"sum": floats(sums), "sum_bf16": pack("H", [encode_bf16(v) for v in sums])}


KINDS = {
    "quantize": lambda case: quantize(case, read(case["files"]["input"], "f")),
    "elements": elements,
    "delayed_scale_update": delayed_scale_update,
    "step": step,
    "step_and_quantize": step,
    "muon_step": muon_step,
    "param_remainder": param_remainder,
    "fp8_state": fp8_state,
    "gradient_sum": gradient_sum,
}

# Inputs of a case; every other file is an output.
INPUTS = {
    "quantize": {"input"},
    "elements": {"input"},
    "delayed_scale_update": {"amax"},
    "param_remainder": {"input"},
    "fp8_state": {"exp_avg", "exp_avg_sq"},
    "gradient_sum": {"gradients"},
}


def is_input(case, role):
    if case["kind"] not in INPUTS:  # of a step: the gradients and the state before it
        return role == "grad" or (role.startswith(("param", "exp_avg")))
    return role in INPUTS[case["kind"]]


# --- Files


def split_npy(data):
    """Returns the bytes before the elements, with the header, and the bytes of the elements."""
    assert data[:8] == b"\x93NUMPY\x01\x00"
    end = 10 + struct.unpack("<H", data[8:10])[0]
    return data[:end], data[end:]


def read(path, code):
    values = array.array(code)
    values.frombytes(split_npy((DIRECTORY / path).read_bytes())[1])
    if sys.byteorder == "big":
        values.byteswap()
    return values


def pack(code, values):
    return struct.pack(f"<{len(values)}{code}", *values)


def floats(values):
    return pack("I", [bits_of(v) for v in values])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the outputs")
    write = parser.parse_args().write
    index = json.loads((DIRECTORY / "index.json").read_text())
    assert len(index["cases"]) == index["case_count"]
    arrays = wrong = 0
    for case in index["cases"]:
        outputs = KINDS[case["kind"]](case)
        for role, path in case["files"].items():
            if path is None or is_input(case, role):
                continue
            arrays += 1
            header, stored = split_npy((DIRECTORY / path).read_bytes())
            if bytes(outputs[role]) == stored:
                continue
            wrong += 1
            print(f"{case['name']}: {role} differs from {path}")
            if write:
                (DIRECTORY / path).write_bytes(header + bytes(outputs[role]))
    print(f"{len(index['cases'])} cases, {arrays} arrays, {wrong} differ" + (" and were written" if write and wrong else ""))
    return 0 if write or wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
