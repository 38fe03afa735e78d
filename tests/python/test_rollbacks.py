"""Errors for a client that has seen answers of commits which are gone."""

import pathlib
from collections.abc import Callable

import pytest

import paramshard
from conftest import Daemon, spec_of

SPEC = spec_of("m")


@pytest.fixture
def saving(start: Callable[..., Daemon], tmp_path: pathlib.Path) -> Daemon:
    (tmp_path / "saves").mkdir()
    return start(flags=("--keeper=off", f"--save-dir={tmp_path / 'saves'}"))


def _train(client: paramshard.Client, steps: int) -> int:
    """Returns the number of the last commit."""
    with client.open_model(SPEC) as model:
        for _ in range(steps):
            for unit in SPEC.units:
                model.gradients(unit.name).push()
            model.commit(learning_rate=0.1).wait()
    return client.models()[0].commit_number


def _roll_back(by: paramshard.Client) -> None:
    by.restore("m", 1)


def _make_again(by: paramshard.Client) -> None:
    by.delete_model("m")
    by.create_model(SPEC)


@pytest.mark.parametrize("change, error, commit", [(_roll_back, paramshard.DataLossError, 1),
                                                   (_make_again, paramshard.AbortedError, 0)])
def test_lost_commits_are_told_once(saving: Daemon, change, error, commit: int):
    with saving.client() as client, saving.client() as other:
        _train(client, 1)
        other.save("m")
        _train(client, 2)
        change(other)
        with pytest.raises(error):
            client.open_model(SPEC)
        assert not other.models()[0].attached_ranks
        with client.open_model(SPEC) as model:
            assert model.commit_number == commit


@pytest.mark.parametrize("change, commit", [(_roll_back, 1), (_make_again, 0)])
def test_whoever_accepts_rollbacks_goes_on(saving: Daemon, change, commit: int):
    with saving.client(accept_rollback=True) as client, saving.client() as other:
        _train(client, 1)
        other.save("m")
        _train(client, 2)
        change(other)
        assert _train(client, 0) == commit
        assert _train(client, 1) == commit + 1


def test_what_a_client_has_done_itself_is_no_news(saving: Daemon):
    with saving.client() as client:
        _train(client, 1)
        client.save("m")
        _train(client, 2)
        client.restore("m", 1)
        assert _train(client, 1) == 2
        client.delete_model("m")
        assert _train(client, 0) == 0
