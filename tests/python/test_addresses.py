"""Clients that ask a daemon on another machine, by its address."""

import pathlib
import shutil
import socket
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

import paramshard
from conftest import Daemon, spec_of

ROLES = ("node/0", "viewer", "trainer", "admin")


def _make_certificate(path: pathlib.Path, subject: str, *options: str) -> None:
    """Beside it lies its key."""
    subprocess.run(["openssl", "req", "-x509", "-nodes", "-days", "1", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-subj", f"/CN={subject}", "-keyout", str(path.with_suffix(".key")),
                    "-out", str(path), *options], check=True, capture_output=True)


class Place:
    """A daemon that listens on a port of this machine, and certificates of each role."""

    def __init__(self, start: Callable[..., Daemon], folder: pathlib.Path):
        self._folder = folder
        self._ca = folder / "ca.pem"
        _make_certificate(self._ca, "authority")
        for role in ROLES:
            self.issue(role, f"spiffe://example.test/paramshard/w1/{role}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        tls = [f"--{name.replace('_', '-')}={path}" for name, path in self.files("node/0").items()]
        self.daemon = start(flags=("--keeper=off", f"--listen={self.address}", *tls))

    def _path(self, role: str) -> pathlib.Path:
        return self._folder / f"{role.replace('/', '-')}.pem"

    def issue(self, role: str, uri: str) -> None:
        path = self._path(role)
        _make_certificate(path, path.stem, "-CA", str(self._ca), "-CAkey", str(self._ca.with_suffix(".key")),
                          "-addext", f"subjectAltName=URI:{uri}", "-addext", "basicConstraints=critical,CA:FALSE")
        path.with_suffix(".key").chmod(0o600)

    def files(self, role: str) -> dict[str, str]:
        path = self._path(role)
        return {"tls_cert": str(path), "tls_key": str(path.with_suffix(".key")), "tls_ca": str(self._ca)}

    def client(self, role: str, **options) -> paramshard.Client:
        return paramshard.Client(**{"address": self.address, **self.files(role), **options})


@pytest.fixture(scope="module")
def openssl() -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is needed, which makes certificates")


@pytest.fixture
def place(openssl, start: Callable[..., Daemon], tmp_path: pathlib.Path) -> Place:
    return Place(start, tmp_path)


def test_a_client_does_what_its_certificate_says(place: Place):
    with place.daemon.client() as local:
        local.create_model(spec_of("m"))
    with place.client("viewer") as viewer, place.client("trainer") as trainer, place.client("admin") as admin:
        for each in (viewer, trainer, admin):
            assert [model.name for model in each.models()] == ["m"]
        assert viewer.memory() and admin.memory()
        with pytest.raises(paramshard.PermissionDeniedError):
            trainer.memory()
        with pytest.raises(paramshard.PermissionDeniedError):
            viewer.export_tensors("m")
        exported = trainer.export_tensors("m")
        assert {extent.parameter for extent in exported.extents} == {
            "blocks.0.w", "blocks.0.b", "blocks.1.w", "blocks.1.b"}
        for each in (viewer, trainer):
            with pytest.raises(paramshard.PermissionDeniedError):
                each.delete_model("m")
        admin.delete_model("m")
        assert viewer.models() == []


@pytest.mark.parametrize("role", ROLES[1:])
def test_models_are_opened_beside_their_daemon_alone(place: Place, role: str):
    with place.client(role) as client:
        for call in (client.open_model, client.create_model):
            with pytest.raises(paramshard.FailedPreconditionError):
                call(spec_of("m"))
        assert client.models() == []


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key", "tls_ca"])
def test_a_file_that_is_not_given_is_named(missing: str):
    files = {name: "/some.pem" for name in ("tls_cert", "tls_key", "tls_ca") if name != missing}
    with pytest.raises(paramshard.FailedPreconditionError, match=f"got no {missing}$"):
        paramshard.Client(address="127.0.0.1:1", **files)


def test_what_is_wrong_with_a_file_is_said_in_the_callers_words(place: Place, tmp_path: pathlib.Path):
    """No message names flags: only the daemon and paramshardctl have them."""
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    text.chmod(0o600)
    open_to_all = tmp_path / "open.key"
    open_to_all.write_bytes(pathlib.Path(place.files("admin")["tls_key"]).read_bytes())
    open_to_all.chmod(0o644)
    place.issue("other", "spiffe://corp/ps-0")
    wrong = [{name: path} for name in ("tls_cert", "tls_key", "tls_ca") for path in ("/nowhere.pem", str(text))]
    wrong += [{"tls_key": str(open_to_all)}, {"tls_key": place.files("viewer")["tls_key"]}, place.files("other"),
              {"tls_cert": place.files("viewer")["tls_cert"]}]
    for files in wrong:
        with pytest.raises((paramshard.FailedPreconditionError, paramshard.InvalidArgumentError)) as raised:
            place.client("admin", **files)
        assert "--" not in str(raised.value) and "TLS" in str(raised.value), (files, raised.value)
        assert any(path in str(raised.value) for path in files.values()), (files, raised.value)


@pytest.mark.parametrize("options, name", [
    ({"tls_cert": "a.pem"}, "address"), ({"tls_roles": ["admin=a"]}, "address"),
    ({"address": "127.0.0.1:1", "socket_dir": "/tmp"}, "socket_dir"), ({"address": "nowhere"}, "HOST:PORT"),
    ({"address": "127.0.0.1:1", "tls_roles": ["root=a"]}, "tls_roles")])
def test_arguments_that_do_not_go_together_are_named(options: dict, name: str):
    if options == {"address": "nowhere"}:
        options = options | {"tls_cert": "a.pem", "tls_key": "a.key", "tls_ca": "ca.pem"}
    with pytest.raises(paramshard.InvalidArgumentError, match=name) as raised:
        paramshard.Client(**options)
    assert "--" not in str(raised.value)


def test_a_daemon_that_does_not_answer_is_named(place: Place):
    place.daemon.stop()
    with pytest.raises(paramshard.UnavailableError, match=place.address):
        place.client("admin", connect_timeout=0.5, restart_timeout=0)


def test_imports_need_an_admin(place: Place):
    with place.daemon.client() as local:
        local.create_model(spec_of("m"))
    values = {"blocks.0.b": np.ones((1, 64), np.float32)}
    with place.client("viewer") as viewer, pytest.raises(paramshard.PermissionDeniedError):
        viewer.import_tensors("m", values)
    with place.client("admin") as admin:
        admin.import_tensors("m", values)
        assert admin.models()[0].origin == "imported"
