"""Specification of a model, which trainers write and the daemon checks.

Every rank describes a model alike. The daemon fills in defaults for fields that are None: `Model.spec` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DelayedScaling:
    """Rule by which the scale of FP8_TENSOR_DELAYED follows the amaxes of earlier steps."""

    algorithm: str = "max"  # "max" or "most_recent": the amax of the window that sets the scale
    history_length: int = 1024
    margin: int = 0  # the scale leaves a factor of 2^margin


@dataclass
class Encoding:
    """Encoding of planes.

    `format`: FP32, BF16, FP16, FP8_TENSOR_CURRENT, FP8_TENSOR_DELAYED, FP8_BLOCK_128X128, MXFP8, MXFP8_2D, NVFP4_2D.
    None: the first format rule that matches the parameter's name decides, and nothing else is set here; FP32 in a model
    without rules.
    """

    format: str | None = None
    element: str | None = None  # E4M3 or E5M2; E2M1 for NVFP4_2D
    power_of_two_scales: bool | None = None
    delayed_scaling: DelayedScaling | None = None


@dataclass
class InitialValue:
    """The distribution of a parameter's first values: a function of (seed, parameter, element) alone.

    `kind`: zeros, ones, constant (a), normal (mean a, deviation b), uniform (from a to below b), truncated_normal (mean
    a, deviation b, within [low, high]). Elements [zero_begin, zero_end), in row-major order, are zero in any kind: the
    row of an embedding's padding, say.
    """

    kind: str = "zeros"
    a: float = 0.0
    b: float = 0.0
    low: float = -2.0
    high: float = 2.0
    zero_begin: int = 0
    zero_end: int = 0


@dataclass
class ParameterSpec:
    """One tensor, seen as a matrix [product of all dimensions but the last, last]; a scalar is 1 x 1."""

    name: str  # unique in the model
    shape: list[int]  # 0 to 8 dimensions
    encoding: Encoding = field(default_factory=Encoding)
    gradient_type: str = "FP32"  # or BF16
    exp_avg_type: str | None = None  # FP32, BF16, FP16 or FP8; of the first moment, whatever the optimizer calls it
    exp_avg_sq_type: str | None = None  # of the second
    master_type: str | None = None  # FP32, or BF16_REMAINDER for parameters of format BF16
    group: int = 0  # index into ModelSpec.groups
    initial_value: InitialValue = field(default_factory=InitialValue)
    placement: str = "cut"  # by rows, over the ranks; or "owned", as always for Muon: a matrix is whole on one rank
    trainable: bool = True  # False: frozen, without moments and gradient
    transposed: bool = False  # for Muon: a matrix is stored as [inputs, outputs]
    split_rows: list[int] = field(default_factory=list)  # for Muon: outputs of the matrices that it is made of


@dataclass
class UnitSpec:
    """Parameters that are gathered and pushed together: a layer, or a transformer block."""

    name: str  # unique among the units
    parameters: list[ParameterSpec] = field(default_factory=list)
    reshard_after_forward: bool = True  # False: it has a slot of its own, and one gather of both phases


@dataclass
class MuonOptions:
    """Fixed options of Muon: the factor of the learning rate, and (a, b, c) of each Newton-Schulz iteration."""

    rate: str = "original"  # or match_rms_adamw, spectral_unclamped
    steps: list[tuple[float, float, float]] = field(default_factory=lambda: [(3.4445, -4.7750, 2.0315)] * 5)


@dataclass
class ParameterGroup:
    """Parameters that share hyper-parameters."""

    name: str = ""  # shown in logs and listings
    optimizer: str = "adamw"  # or adam, sgd, sgd_momentum, sgd_nesterov, lion, muon or muon_nesterov
    bias_correction: bool = True  # of adamw and adam
    muon: MuonOptions = field(default_factory=MuonOptions)  # of muon and muon_nesterov


@dataclass
class FormatRule:
    """Storage of parameters whose names match a glob, unless they name a format themselves."""

    pattern: str
    encoding: Encoding = field(default_factory=Encoding)
    exp_avg_type: str | None = None
    exp_avg_sq_type: str | None = None
    master_type: str | None = None


@dataclass
class ModelSpec:
    """A model. InvalidArgumentError names the parameter or the field that is invalid."""

    name: str  # unique on the daemon; no "/"
    units: list[UnitSpec] = field(default_factory=list)
    groups: list[ParameterGroup] = field(default_factory=list)  # empty: one with defaults
    shard_size: int | None = None  # None: the devices of one daemon
    small_parameter_bytes: int = 256 * 1024  # smaller planes live whole on one rank
    gather_slots: int = 3  # prefetch depth + 1; 1 to 64
    large_gather_slots: int = 1  # gather slots for units of more than twice the median size
    gradient_slots: int = 2  # 1 to 64
    gradient_reduction: str = "mean"  # or "sum", over all ranks
    seed: int = 0
    step_timeout: float | None = None  # seconds that one rank may keep another waiting inside a step
    format_rules: list[FormatRule] = field(default_factory=list)  # the first match counts
    gradient_sums: str | None = None  # "at_commit" or "at_push"
    accumulator_type: str = "FP32"  # BF16: half the memory, and one push of a unit between two commits
