"""Errors of the daemon and of the client library, by what the caller should do."""

from __future__ import annotations


class Error(Exception):
    """Base class of errors of the daemon and the client library. The text names the operation and the cause.

    `code` is the status code, such as "NOT_FOUND". Codes without a class of their own have this one.
    """

    code = "UNKNOWN"


class CancelledError(Error):
    """The call was cancelled."""

    code = "CANCELLED"


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid: fix the call."""

    code = "INVALID_ARGUMENT"


class DeadlineExceededError(Error, TimeoutError):
    """Timed out; the text says which event, and which rank or node was waited for."""

    code = "DEADLINE_EXCEEDED"


class NotFoundError(Error):
    """No model, unit, parameter, file or daemon has that name."""

    code = "NOT_FOUND"


class AlreadyExistsError(Error):
    """The name already exists: with another spec, or with a state that the call would not keep."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(Error):
    """The daemon serves another user, or may not read a file."""

    code = "PERMISSION_DENIED"


class ResourceExhaustedError(Error):
    """Too little memory, slots or descriptors; the text says which setting gives more."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(Error):
    """The call is valid, but the model or the handle is in the wrong state."""

    code = "FAILED_PRECONDITION"


class AbortedError(Error):
    """The epoch has ended, most often because another trainer died: open the model again, and go on from its
    `commit_number` and `client_state`."""

    code = "ABORTED"


class UnimplementedError(Error):
    """Not supported by this build, device or format."""

    code = "UNIMPLEMENTED"


class InternalError(Error):
    """A bug of paramshard, or a broken device."""

    code = "INTERNAL"


class UnavailableError(Error, ConnectionError):
    """The daemon is not running, or does not serve now: `Client.open_model` waits for it."""

    code = "UNAVAILABLE"


class DataLossError(Error):
    """State is damaged or lost: restore a save, import, or delete the model."""

    code = "DATA_LOSS"


_CLASSES = {error.code: error for error in Error.__subclasses__()}


def of_status(code: str, message: str) -> Error:
    """Makes the error of a status."""
    error = _CLASSES.get(code, Error)(message)
    error.code = code
    return error
