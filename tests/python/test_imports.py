"""Imports of the package: no circles, nothing heavy, and other packages beside it."""

import ast
import graphlib
import itertools
import pathlib
import subprocess
import sys
import textwrap

import pytest

import paramshard
from conftest import TIMEOUT, Daemon


def imports_of(package: pathlib.Path) -> dict[str, set[str]]:
    """Returns, by module, the modules of the package that it imports: at its top, in functions, or for types alone.

    A module does not count as an importer of the packages that it lies in.
    """
    files = {".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
             for path in (*package.rglob("*.py"), *package.rglob("*.pyi"))}
    graph = {}
    for module, path in files.items():
        own_package = module if path.stem == "__init__" else module.rpartition(".")[0]
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parents = own_package.split(".")
                start = [".".join(parents[:len(parents) - node.level + 1])] if node.level else []
                source = ".".join(start + ([node.module] if node.module else []))
                names = {alias.name: f"{source}.{alias.name}" for alias in node.names}
                found.update(name if name in files else source for name in names.values())
        graph[module] = found & files.keys() - {module}
    return graph


def circle_in(package: pathlib.Path) -> list[str]:
    """Returns modules of which each imports the next, and the last one is the first; none if there is no circle."""
    try:
        graphlib.TopologicalSorter(imports_of(package)).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def test_no_imports_go_in_a_circle():
    package = pathlib.Path(paramshard.__file__).parent
    assert len(imports_of(package)) > 20
    assert circle_in(package) == []


@pytest.mark.parametrize("text", [
    "import package.b", "import package.b as b", "from package.b import f", "from package import b", "from . import b",
    "from .b import f", "def f():\n    from package import b", "if TYPE_CHECKING:\n    from package.b import B"])
def test_a_circle_is_found_however_a_module_is_imported(tmp_path: pathlib.Path, text: str):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.a import f")
    (package / "a.py").write_text(text)
    (package / "b.py").write_text("import package.c, package")
    (package / "c.py").write_text("import package.d")
    (package / "d.py").write_text("")
    circle = ["package", "package.a", "package.b", "package"]
    assert circle_in(package) in [circle[first:-1] + circle[:first + 1] for first in range(3)]
    (package / "b.py").write_text("import package.c")
    assert circle_in(package) == []


def output_of(script: str, *arguments: str) -> str:
    """Returns the output of a process of its own that exits with 0."""
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script), *arguments], capture_output=True,
                             text=True, timeout=TIMEOUT)
    assert process.returncode == 0, process.stderr
    return process.stdout


# Each has a C++ core with names that the package's own gRPC, Protocol Buffers and Abseil have as well.
STEPS = {
    "paramshard": """
        import paramshard
        with paramshard.Client(socket_dir=sys.argv[1]) as client:
            print(client.daemon_info().world_size)
    """,
    "grpc": """
        import grpc
        with grpc.insecure_channel(f"unix:{sys.argv[1]}/grpc.sock") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            call = channel.unary_unary("/paramshard.v1.AdminService/GetVersion")
            try:
                call(b"", timeout=60)
            except grpc.RpcError as error:
                print(error.code().name)
    """,
    "protobuf": """
        from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2
        from google.protobuf.internal import api_implementation
        message = duration_pb2.Duration(seconds=3)
        print(api_implementation.Type(), duration_pb2.Duration.FromString(message.SerializeToString()).seconds)
    """,
}
ANSWERS = {"paramshard": "1\n", "grpc": "UNAUTHENTICATED\n", "protobuf": "upb 3\n"}


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)), ids="-".join)
def test_grpcio_and_protobuf_work_beside_it_in_any_order(daemon: Daemon, order: tuple[str, ...]):
    script = "import sys\n" + "".join(textwrap.dedent(STEPS[name]) for name in order * 2)
    assert output_of(script, str(daemon.socket_dir)) == "".join(ANSWERS[name] for name in order * 2)


def test_an_import_brings_nothing_heavy_along():
    modules = output_of("""
        import sys
        import paramshard
        print(*sorted({name.partition(".")[0] for name in sys.modules}))
    """).split()
    assert "paramshard" in modules
    # Frameworks, and slow imports: NumPy is imported with the first array.
    heavy = {"torch", "numpy", "grpc", "google", "jax", "tensorflow", "asyncio", "multiprocessing", "subprocess"}
    assert not heavy.intersection(modules)
