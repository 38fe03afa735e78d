"""Errors as docs/train/python.md describes them: their classes, and refusals by name."""

import pytest
from conftest import Daemon, spec_of

import paramshard


@pytest.mark.parametrize("error, base", [
    (paramshard.InvalidArgumentError, ValueError),
    (paramshard.DeadlineExceededError, TimeoutError),
    (paramshard.UnavailableError, ConnectionError),
])
def test_errors_are_those_of_python_too(error: type[Exception], base: type[Exception]):
    assert issubclass(error, base) and issubclass(error, paramshard.Error)


def test_a_call_that_nobody_answers_ends_in_time(daemon: Daemon):
    client = daemon.client(attach_timeout=0.5)
    daemon.pause()
    with pytest.raises(TimeoutError, match="m: "):
        client.create_model(spec_of("m"))


def test_a_spec_that_no_message_holds_is_refused_by_name(daemon: Daemon):
    names = [f"{index:06}" + "x" * 400 for index in range(90_000)]
    large = paramshard.ModelSpec("large", [paramshard.UnitSpec("u", [paramshard.ParameterSpec(name, [1])
                                                                     for name in names])])
    with daemon.client() as client:
        with pytest.raises(paramshard.InvalidArgumentError, match="create model large: .*spec"):
            client.create_model(large)
        # The connection is as good as before.
        client.create_model(spec_of("m"))


def test_too_many_parameters_are_refused_by_number(daemon: Daemon):
    many = paramshard.ModelSpec("many", [paramshard.UnitSpec("u", [paramshard.ParameterSpec(str(index), [1])
                                                                   for index in range(250_001)])])
    with daemon.client() as client, pytest.raises(paramshard.InvalidArgumentError, match="many: .*250000.*250001"):
        client.create_model(many)
