"""Two daemons of one world, as on two nodes: trainings that torchrun starts on both, and what one of them can read."""

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import paramshard
import paramshard.torch as pt
from conftest import DEVICE, Daemon
from models import GPT, batch_of, loss_of
from test_ranks import run_ranks

TRAINER = pathlib.Path(__file__).with_name("trainer.py")
TIMEOUT = 300.0

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="daemons with a GPU each are not started here")


class Node(Daemon):
    """One of several daemons. None answers before all have started."""

    def __init__(self, folder: pathlib.Path, number: int, address: str, flags: tuple[str, ...] = ()):
        folder.mkdir()
        self.number, self.address, self.flags = number, address, flags
        super().__init__(folder, 1, ("--keeper=off", "--nodes=2", f"--node={number}", f"--cluster-address={address}",
                                     *flags))

    def _await_ready(self) -> None:
        pass

    def await_world(self) -> None:
        super()._await_ready()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nodes:
    """Worlds of two daemons with one rank each."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._all: list[Node] = []

    def start(self, number: int, address: str, flags: tuple[str, ...]) -> Node:
        self._all.append(Node(self._folder / f"node{len(self._all)}", number, address, flags))
        return self._all[-1]

    def __call__(self, *flags: str) -> list[Node]:
        address = f"127.0.0.1:{_free_port()}"
        world = [self.start(number, address, flags) for number in range(2)]
        for node in world:
            node.await_world()
        return world

    def in_place_of(self, lost: Node) -> Node:
        """Kills the daemon, with all that it has, and starts another one."""
        lost.kill()
        node = self.start(lost.number, lost.address, lost.flags)
        node.await_world()
        return node

    def stop(self) -> None:
        for node in self._all:
            node.stop()


@pytest.fixture
def start_nodes(tmp_path: pathlib.Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.stop()


# --- Trainings under torchrun ---


class Job:
    """A training on two nodes, each with an agent of torchrun, which meet in a file.

    RANK follows the order of the agents' addresses, of which any will do, for no worker connects to another.
    """

    def __init__(self, folder: pathlib.Path, nodes: list[Node], steps: int, **environment: str):
        self._folder = folder
        self._nodes = nodes
        self._steps = steps
        self._environment = environment
        self._agents: list[subprocess.Popen] = []
        folder.mkdir()

    def start(self, node: int, address: str, *deaths: tuple[int, int, str]) -> subprocess.Popen:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
                   "--rdzv-backend=c10d", f"--rdzv-endpoint={self._folder / 'rendezvous'}", "--rdzv-id=job",
                   "--rdzv-conf=store_type=file", f"--local-addr={address}", "--max-restarts=3",
                   "--monitor-interval=0.1", str(TRAINER), str(self._folder), str(self._steps)]
        command += [str(word) for death in deaths for word in death]
        # The store that agents share by default stays with the first agent, and a new first agent gives up.
        environment = os.environ | {"PARAMSHARD_TEST_SOCKETS": str(self._nodes[node].socket_dir),
                                    "PARAMSHARD_TEST_EXISTING": "resume", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment |= self._environment
        with (self._folder / f"log{len(self._agents)}").open("w") as log:
            self._agents.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return self._agents[-1]

    def await_end(self, *agents: subprocess.Popen) -> dict[str, torch.Tensor]:
        for agent in agents:
            assert agent.wait(TIMEOUT) == 0, self._logs()
        return torch.load(self._folder / "weights.pt")

    def ranks_given(self, rank: int) -> set[str]:
        return set((self._folder / f"given-{rank}").read_text().split())

    def _logs(self) -> str:
        return "\n\n".join(log.read_text()[-6000:] for log in sorted(self._folder.glob("log*")))

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(TIMEOUT)


@pytest.mark.timeout(900)
def test_torchrun_permuted_ranks_2_nodes(start_nodes, tmp_path):
    """A rank is killed, and later a node's agent with its worker. The one that comes gets the other node's RANK."""
    with Job(tmp_path / "whole", start_nodes(), steps=5) as job:
        expected = job.await_end(job.start(0, "127.0.0.1"), job.start(1, "127.0.0.2"))
        assert [job.ranks_given(rank) for rank in range(2)] == [{"0"}, {"1"}]
    with Job(tmp_path / "killed", start_nodes(), steps=5) as job:
        lost = job.start(0, "127.0.0.1", (0, 1, "backward"), (0, 3, "node"))
        stays = job.start(1, "127.0.0.2")
        assert lost.wait(TIMEOUT) != 0
        weights = job.await_end(job.start(0, "127.0.0.3"), stays)
        assert [job.ranks_given(rank) for rank in range(2)] == [{"0", "1"}, {"0", "1"}]
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost, values, restores", [
    (0, "drawn", False), (1, "drawn", False), (1, "brought", False), (1, "brought", True)])
def test_torchrun_goes_on_when_a_node_is_lost_with_its_daemon(start_nodes, tmp_path, lost, values, restores):
    """The other daemon's replica heals the one that comes, whether the program draws its first values or brings them.

    Node 0 is left out with values that are brought: what it has imported is for a person to judge.
    """
    (tmp_path / "saves").mkdir()
    flags = (f"--save-dir={tmp_path / 'saves'}", "--restore=latest") if restores else ()
    with Job(tmp_path / "whole", start_nodes(), steps=5, PARAMSHARD_TEST_VALUES=values) as job:
        expected = job.await_end(job.start(0, "127.0.0.1"), job.start(1, "127.0.0.2"))
    nodes = start_nodes(*flags)
    with Job(tmp_path / "lost", nodes, steps=5, PARAMSHARD_TEST_VALUES=values) as job:
        dies = job.start(lost, "127.0.0.2", (0, 3, "node"))
        stays = job.start(1 - lost, "127.0.0.1")
        assert dies.wait(TIMEOUT) != 0
        nodes[lost] = start_nodes.in_place_of(nodes[lost])
        weights = job.await_end(job.start(lost, "127.0.0.3"), stays)
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


# --- Rows that another node has ---


def _trained(node: Node, rank: int, model: GPT, name: str, **options: int | str) -> pt.ShardedModel:
    sharded = pt.shard(model, name=name, units=model.units(), socket_dir=str(node.socket_dir), local_rank=0, **options)
    sharded._description._options["small_parameter_bytes"] = 0  # so that parameters of this size are cut as well
    optimizer = pt.AdamW(model.parameters())
    assert (sharded.rank, sharded.world_size) == (rank, 2)
    loss_of(model, batch_of(rank)).backward()
    optimizer.step()
    return sharded


def _models() -> list[GPT]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(GPT())
    return models


def test_every_node_reads_its_replica(start_nodes):
    nodes, models = start_nodes(), _models()

    def work(rank: int) -> None:
        model = models[rank]
        with _trained(nodes[rank], rank, model, "replica") as sharded:
            with sharded.unsharded():
                gathered = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            exported = model.state_dict()
            for name, value in gathered.items():
                torch.testing.assert_close(exported[name], value, rtol=0, atol=0)

    run_ranks(2, work)


def test_rows_of_another_node_are_not_read(start_nodes):
    nodes, models = start_nodes(), _models()

    def work(rank: int) -> None:
        with _trained(nodes[rank], rank, models[rank], "cut", shard_size=2) as sharded:
            with pytest.raises(paramshard.FailedPreconditionError,
                               match="read head.weight: 24 of 48 rows are in daemons of other nodes"):
                sharded.read("head.weight")
            with pytest.raises(paramshard.FailedPreconditionError, match="rows are in daemons of other nodes"):
                models[rank].state_dict()

    run_ranks(2, work)


def test_a_fresh_model_begins_on_every_node(start_nodes):
    nodes = start_nodes()

    def train(existing: str) -> None:
        models = _models()

        def work(rank: int) -> None:
            with _trained(nodes[rank], rank, models[rank], "again", existing=existing) as sharded:
                assert sharded.last_result().commit_number == 1

        run_ranks(2, work)

    for existing in ("error", "fresh", "fresh"):
        train(existing)
