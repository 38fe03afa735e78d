"""Imports of the package: the modules that it imports, and other packages beside it."""

import itertools
import subprocess
import sys
import textwrap

import pytest

from conftest import TIMEOUT, Daemon


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
