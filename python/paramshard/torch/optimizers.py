"""The optimizers of sharded models."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

import paramshard
from paramshard.spec import MuonOptions
from paramshard.torch.messages import some
from paramshard.torch.model_description import Matrices
from paramshard.torch.optimizer import Moments, ShardedOptimizer, betas_of

_MODES = {"adamw": "adamw", "l2": "adam"}  # optimizers of the daemon


class AdamW(ShardedOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), or L2 decay with mode="l2".

    Making it opens the model in the daemon, and waits for the other ranks. Schedulers change `param_groups` as they do
    anywhere; each group has its own lr, betas, eps and weight_decay. Gradients are in the daemon, which clips them, so
    torch.nn.utils.clip_grad_norm_ has nothing to clip, and says so.

    `step` returns before the daemon has stepped. A step whose gradients are not all finite is skipped on all ranks,
    and counted: `last_result().skipped`.
    """

    _FIXED = ", mode and bias_correction"
    _FREE = "rates, betas, eps and weight_decay"

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 amsgrad: bool = False, *, max_grad_norm: float | None = None, moments: str = "FP32",
                 exp_avg: str | None = None, exp_avg_sq: str | None = None, mode: str = "adamw",
                 bias_correction: bool = True, foreach: bool | None = None, fused: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False):
        """Opens the sharded model of the parameters; all ranks make it alike.

        Args:
            params: The trainable parameters of one sharded model, or groups of them.
            lr: As in torch.optim.AdamW, for groups without their own; likewise `betas`, `eps` and `weight_decay`.
            max_grad_norm: Global norm to which the daemon clips the gradients. 0, infinity and None: no clipping.
            moments: Format of both moments: "FP32", "BF16", "FP16" or "FP8".
            exp_avg: Format of the first moment. None: `moments`.
            exp_avg_sq: Format of the second moment. None: `moments`.
            mode: "adamw", or "l2" to add the decay to the gradients, as torch.optim.Adam does.
            bias_correction: False steps by the moments without their correction for the first steps.
            foreach: Without effect, because the daemon has one kernel; likewise `fused`.
            amsgrad: False; likewise `maximize`, `capturable` and `differentiable`: the daemon has no such steps.

        Raises:
            Error: One of `ShardedOptimizer`.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "mode": mode,
                    "bias_correction": bias_correction}
        super().__init__(params, defaults, Moments(exp_avg or moments, exp_avg_sq or moments), max_grad_norm,
                         amsgrad=amsgrad, maximize=maximize, capturable=capturable, differentiable=differentiable)

    def _fixed_options(self, group: dict[str, Any]) -> tuple[str, bool]:
        if group["mode"] not in _MODES:
            raise paramshard.InvalidArgumentError(
                f"AdamW: mode: want one of {', '.join(_MODES)}, got {group['mode']}")
        return _MODES[group["mode"]], group["bias_correction"]

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, float]:
        return betas_of("AdamW", group) | {"learning_rate": float(group["lr"]), "epsilon": float(group["eps"]),
                                           "weight_decay": float(group["weight_decay"])}


class SGD(ShardedOptimizer):
    """Stochastic gradient descent by the formula of torch.optim.SGD, which works otherwise as `AdamW` here does.

    A group whose momentum is 0 when the optimizer is made keeps no moment. Any other has a momentum buffer, which
    begins as the first gradient, and schedulers may change its momentum.
    """

    _FIXED = ", nesterov and whether momentum is 0"
    _FREE = "rates, momentum, dampening and weight_decay"

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float = 1e-3,
                 momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, *,
                 max_grad_norm: float | None = None, moments: str = "FP32", maximize: bool = False,
                 foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None):
        """Opens the sharded model of the parameters; all ranks make it alike.

        Args:
            params: The trainable parameters of one sharded model, or groups of them.
            lr: As in torch.optim.SGD, for groups without their own; likewise `momentum`, `dampening`, `weight_decay`
                and `nesterov`.
            max_grad_norm: Global norm to which the daemon clips the gradients. 0, infinity and None: no clipping.
            moments: Format of the momentum buffer, as of `AdamW`.
            foreach: Without effect, because the daemon has one kernel; likewise `fused`.
            maximize: False; likewise `differentiable`: the daemon has no such steps.

        Raises:
            Error: One of `ShardedOptimizer`.
        """
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                    "nesterov": nesterov}
        super().__init__(params, defaults, Moments(moments), max_grad_norm, maximize=maximize,
                         differentiable=differentiable)

    def _fixed_options(self, group: dict[str, Any]) -> tuple[str, bool]:
        if group["momentum"] == 0:
            return "sgd", True
        return "sgd_nesterov" if group["nesterov"] else "sgd_momentum", True

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, float]:
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise paramshard.InvalidArgumentError(
                f"SGD: nesterov: want momentum > 0 and dampening 0, got momentum {group['momentum']} and dampening "
                f"{group['dampening']}")
        return {"learning_rate": float(group["lr"])} | {
            name: float(group[name]) for name in ("momentum", "dampening", "weight_decay")}


class Lion(ShardedOptimizer):
    """Lion (Chen et al., arXiv:2302.06675), which works otherwise as `AdamW` here does.

    Its steps are signs: the paper takes a rate 3 to 10 times smaller than AdamW's, and a weight_decay as much larger.
    """

    _FIXED = ""
    _FREE = "rates, betas and weight_decay"

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
                 max_grad_norm: float | None = None, moments: str = "FP32"):
        """Opens the sharded model of the parameters; all ranks make it alike.

        Args:
            params: The trainable parameters of one sharded model, or groups of them.
            lr: For groups without their own; likewise `betas`, of the step and of the moment, and `weight_decay`.
            max_grad_norm: Global norm to which the daemon clips the gradients. 0, infinity and None: no clipping.
            moments: Format of the moment, as of `AdamW`.

        Raises:
            Error: One of `ShardedOptimizer`.
        """
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, Moments(moments),
                         max_grad_norm)

    def _fixed_options(self, group: dict[str, Any]) -> tuple[str, bool]:
        return "lion", True

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, float]:
        return betas_of("Lion", group) | {"learning_rate": float(group["lr"]),
                                          "weight_decay": float(group["weight_decay"])}


class Muon(ShardedOptimizer):
    """Muon by the formula of torch.optim.Muon, and AdamW for what is no matrix of a hidden layer.

    A group steps by Muon unless it says `use_muon=False`: then it is AdamW, with its own lr, betas, eps (1e-8 if it has
    none) and weight_decay. Embeddings, heads, norms and biases belong into such groups, also stacked biases [experts,
    outputs]. A parameter of three or more dimensions is a stack of matrices, each stepped by itself: [experts, outputs,
    inputs]. A Muon group may say `transposed=True` for parameters that are stored as [inputs, outputs], and
    `split_rows=(q, k, v)` for matrices that are several of these outputs.

        pt.Muon([{"params": matrices}, {"params": others, "use_muon": False, "lr": 3e-4}], lr=0.02, max_grad_norm=1.0)

    One norm over all groups clips the gradients. Otherwise it works as `AdamW` here does.
    """

    _FIXED = ", use_muon, nesterov, ns_coefficients, ns_steps, adjust_lr_fn, transposed and split_rows"
    _FREE = "rates, betas, momentum, eps and weight_decay"

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float = 1e-3,
                 weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
                 ns_coefficients: tuple[float, float, float] | list[tuple[float, float, float]] = (
                     3.4445, -4.7750, 2.0315),
                 eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None, *,
                 betas: tuple[float, float] = (0.9, 0.999), max_grad_norm: float | None = None,
                 moments: str = "FP32"):
        """Opens the sharded model of the parameters; all ranks make it alike.

        Args:
            params: The trainable parameters of one sharded model, or groups of them.
            lr: As in torch.optim.Muon, for groups without their own; likewise `weight_decay`, `momentum`, `nesterov`,
                `eps`, `ns_steps` and `adjust_lr_fn`: "original" (None), "match_rms_adamw" or "spectral_unclamped".
            ns_coefficients: (a, b, c) of all iterations, or a list with those of each, which then has `ns_steps` of
                them or one.
            betas: Of groups with `use_muon=False`.
            max_grad_norm: Global norm to which the daemon clips the gradients. 0, infinity and None: no clipping.
            moments: Format of momentum and moments, as of `AdamW`; on GPUs "FP32" or "BF16".

        Raises:
            InvalidArgumentError: A parameter of a Muon group is no matrix, or one of `ShardedOptimizer`'s reasons.
            Error: One of `ShardedOptimizer`.
        """
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
                    "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
                    "use_muon": True, "transposed": False, "split_rows": ()}
        self._betas = betas  # no default of all groups: schedulers that cycle momentum would take them instead
        super().__init__(params, defaults, Moments(moments, moments), max_grad_norm)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not param_group.get("use_muon", True):
            param_group.setdefault("eps", 1e-8)
            param_group.setdefault("betas", self._betas)
        super().add_param_group(param_group)
        _warn_of_stacked_biases(self.param_groups[-1])

    def _fixed_options(self, group: dict[str, Any]) -> tuple[Any, ...]:
        if not group["use_muon"]:
            return "adamw", True
        for parameter in group["params"]:
            if parameter.dim() < 2:
                raise paramshard.InvalidArgumentError(
                    f"Muon: {getattr(parameter, 'parameter_name', 'a parameter')}: want a matrix or a stack of "
                    f"matrices, got shape {list(parameter.shape)}: put it into a group with use_muon=False")
        return ("muon_nesterov" if group["nesterov"] else "muon", True,
                MuonOptions(group["adjust_lr_fn"] or "original", _newton_schulz_steps(group)))

    def _matrices(self, group: dict[str, Any]) -> Matrices:
        if not group["use_muon"]:
            return Matrices()
        if not isinstance(group["split_rows"], (tuple, list)):
            raise paramshard.InvalidArgumentError(
                f"Muon: split_rows: want a tuple of numbers of outputs, got {group['split_rows']!r}")
        return Matrices(bool(group["transposed"]), tuple(group["split_rows"]))

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, float]:
        numbers = {"learning_rate": float(group["lr"]), "epsilon": float(group["eps"]),
                   "weight_decay": float(group["weight_decay"])}
        return numbers | ({"momentum": float(group["momentum"])} if group["use_muon"] else betas_of("Muon", group))


def _warn_of_stacked_biases(group: dict[str, Any]) -> None:
    """Warns of biases that look like a matrix: mixtures of experts have them as [experts, outputs]."""
    names = [getattr(parameter, "parameter_name", "") for parameter in group["params"] if parameter.dim() >= 2]
    biases = [name for name in names if name.endswith("bias")]
    if group["use_muon"] and biases:
        warnings.warn(f"Muon: {some(biases)}: by their names these are biases, which Muon would step as matrices: put "
                      "them into a group with use_muon=False", stacklevel=6)


def _newton_schulz_steps(group: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Returns the coefficients of each iteration."""
    count, coefficients = group["ns_steps"], group["ns_coefficients"]
    try:
        each = [coefficients] if isinstance(coefficients[0], (int, float)) else list(coefficients)
        steps = [(float(a), float(b), float(c)) for a, b, c in (each * count if len(each) == 1 else each)]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise paramshard.InvalidArgumentError(
            f"Muon: ns_coefficients: want three numbers, or a list of three for each step, got {coefficients!r}"
        ) from error
    if len(steps) != count or not 1 <= count < 100:
        raise paramshard.InvalidArgumentError(
            f"Muon: ns_steps: want 1 to 99, as many as ns_coefficients has, got {count} and {len(each)}")
    return steps
