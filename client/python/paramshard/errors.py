"""Errors of the daemon and of the client library, by what the caller should do."""

from __future__ import annotations


class Error(Exception):
    """An error that paramshard has answered; its text says what was expected, and what there was.

    `code` is the status code, such as "NOT_FOUND". Errors of codes without a class of their own are of this one.
    """

    code = "UNKNOWN"


class CancelledError(Error):
    """The call was cancelled."""

    code = "CANCELLED"


class InvalidArgumentError(Error, ValueError):
    """The call has to be another one: an argument cannot be."""

    code = "INVALID_ARGUMENT"


class DeadlineExceededError(Error, TimeoutError):
    """Something did not happen in time; the text says what, and who was waited for."""

    code = "DEADLINE_EXCEEDED"


class NotFoundError(Error):
    """There is no model, unit, parameter, file or daemon of that name."""

    code = "NOT_FOUND"


class AlreadyExistsError(Error):
    """It is there already, and is another one."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(Error):
    """The daemon serves another user, or may not read what it is to read."""

    code = "PERMISSION_DENIED"


class ResourceExhaustedError(Error):
    """Memory, slots or descriptors do not suffice; the text says which setting gives more."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(Error):
    """The call is right, and the state of the model or the handle is another one."""

    code = "FAILED_PRECONDITION"


class AbortedError(Error):
    """The epoch has ended, most often because another trainer died: open the model again, and go on from its
    `commit_number` and `client_state`."""

    code = "ABORTED"


class UnimplementedError(Error):
    """This build, this device or this format cannot do it."""

    code = "UNIMPLEMENTED"


class InternalError(Error):
    """A bug of paramshard, or a broken device."""

    code = "INTERNAL"


class UnavailableError(Error, ConnectionError):
    """The daemon is not there, or does not serve just now: `Client.open_model` waits for it."""

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
