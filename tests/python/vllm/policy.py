"""A model of a daemon, of which each import is another version."""

from __future__ import annotations

import concurrent.futures
import contextlib

import torch

import paramshard

NAME = "policy"


class Policy(contextlib.ExitStack):
    def __init__(self, daemon):
        super().__init__()
        self._daemon = daemon
        self._clients = [self.enter_context(daemon.client(rank)) for rank in range(2)]
        self._spec: paramshard.ModelSpec | None = None
        self._models: list[paramshard.Model] = []

    @property
    def init_info(self) -> dict[str, str]:
        return {"model": NAME, "socket_dir": str(self._daemon.socket_dir)}

    @property
    def label(self) -> str:
        [model] = self._clients[0].models()
        return f"{model.history_id}:{model.commit_number}"

    def reader(self) -> paramshard.Reader:
        return paramshard.Reader(NAME, socket_dir=str(self._daemon.socket_dir))

    def publish(self, tensors: dict[str, torch.Tensor], commit_number: int = 1, encoding: str = "FP32",
                encoded: str = "") -> str:
        """Gives the model these values and no other parameters, and those with `encoded` in their names this encoding.

        Returns its label.
        """
        spec = paramshard.ModelSpec(NAME, [paramshard.UnitSpec("all", [
            paramshard.ParameterSpec(name, list(tensor.shape),
                                     paramshard.Encoding(encoding if encoded in name else "FP32"))
            for name, tensor in tensors.items()])])
        if self._spec not in (None, spec):
            self._clients[0].delete_model(NAME)
        self._spec = spec
        self._clients[0].create_model(spec)
        self._clients[0].import_tensors(NAME, {name: tensor.numpy() for name, tensor in tensors.items()},
                                        commit_number=commit_number, version=commit_number)
        return self.label

    def step(self, learning_rate: float = 0.0) -> None:
        """Makes another version, by a commit of both ranks with random gradients; at a rate of 0 the values stay."""
        def step(model: paramshard.Model) -> None:
            random = torch.Generator().manual_seed(model.commit_number)
            with model.gradients("all") as gradients:
                for parameter in self._spec.units[0].parameters:
                    gradients[parameter.name][...] = torch.randn(parameter.shape, generator=random).numpy()
                gradients.push()
            model.commit(learning_rate=learning_rate, weight_decay=0.0).wait()

        with concurrent.futures.ThreadPoolExecutor() as pool:
            if not self._models:
                self._models = list(pool.map(lambda client: self.enter_context(client.open_model(self._spec)),
                                             self._clients))
            for _ in pool.map(step, self._models):
                pass

    def read(self) -> dict[str, torch.Tensor]:
        """Returns the decoded values."""
        with self.reader().acquire() as snapshot:
            return {parameter.name: torch.from_numpy(snapshot[parameter.name]) for parameter in snapshot.parameters()}
