"""Sharded, quantized parameters and their optimizer's state, in a daemon beside the trainer.

    import paramshard

    client = paramshard.Client(rank=0)
    model = client.open_model(spec)                      # a paramshard.ModelSpec
    with model.gather("blocks.0") as unit:               # waits; releases at the end
        weights = unit["blocks.0.w"].decode()            # or .data and .scales, as they are encoded
    gradients = model.gradients("blocks.0")
    gradients["blocks.0.w"][...] = gradient              # float32, or bit patterns of BF16
    gradients.push()
    result = model.commit(learning_rate=1e-3, max_grad_norm=1.0).wait()

Errors are exceptions of paramshard.errors, with the daemon's messages.
"""

from paramshard._core import (
    Client,
    CreatedModel,
    DaemonInfo,
    Digest,
    Export,
    ExportedExtent,
    GatheredUnit,
    Matrix,
    MemoryUse,
    Model,
    ModelSummary,
    PendingCommit,
    Plan,
    PlaneRows,
    ReadParameter,
    RestoreSummary,
    SaveRecord,
    Snapshot,
    StepResult,
    UnitGradients,
    UnitPusher,
    UnitReader,
    __version__,
    digest,
)
from paramshard.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from paramshard.reader import Copied, Reader
from paramshard.spec import (
    DelayedScaling,
    Encoding,
    FormatRule,
    InitialValue,
    ModelSpec,
    MuonOptions,
    ParameterGroup,
    ParameterSpec,
    UnitSpec,
)
from paramshard.tensors import ImportTensor
from paramshard.views import Output, Part, View

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "Client",
    "Copied",
    "CreatedModel",
    "DaemonInfo",
    "DataLossError",
    "DeadlineExceededError",
    "DelayedScaling",
    "Digest",
    "Encoding",
    "Error",
    "Export",
    "ExportedExtent",
    "FailedPreconditionError",
    "FormatRule",
    "GatheredUnit",
    "ImportTensor",
    "InitialValue",
    "InternalError",
    "InvalidArgumentError",
    "MemoryUse",
    "Matrix",
    "Model",
    "ModelSpec",
    "ModelSummary",
    "NotFoundError",
    "MuonOptions",
    "Output",
    "ParameterGroup",
    "ParameterSpec",
    "Part",
    "PendingCommit",
    "Plan",
    "ReadParameter",
    "Reader",
    "PermissionDeniedError",
    "PlaneRows",
    "ResourceExhaustedError",
    "RestoreSummary",
    "SaveRecord",
    "Snapshot",
    "StepResult",
    "UnavailableError",
    "UnimplementedError",
    "UnitGradients",
    "UnitPusher",
    "UnitReader",
    "UnitSpec",
    "View",
    "__version__",
    "digest",
]
