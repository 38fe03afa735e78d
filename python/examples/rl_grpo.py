"""Teaches a small model to add two numbers, by GRPO: a trainer, and rollouts in another process that follow it.

    python rl_grpo.py                           # starts a daemon; the trainer is killed at half of the steps
    python rl_grpo.py --engine vllm             # rollouts by vLLM instead of generate() of transformers
    python rl_grpo.py --ray                     # the same two workers as actors of Ray

The weights live in a paramshard daemon. Before each batch the rollout worker brings its own copy to the newest
version, so no weights are sent and no checkpoint is written. When the trainer is killed, rollouts go on with the last
version, and a new trainer goes on from the last step. A short supervised training comes first, or no answer would be
right at the beginning. The rewards are drawn into --plot if matplotlib is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers

import paramshard
import paramshard.torch as pt
from paramshard import programs

NAME = "rl-grpo"
PLUS, EQUALS = 10, 11  # tokens behind the digits
PROMPT, ANSWER = 6, 3  # tokens of "07+35=" and of "240"
LARGEST = 49  # of the numbers to add
CLIP = 0.2  # of the ratio of probabilities
Arrays = dict[str, np.ndarray]


def make_model(width: int) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=12, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False))


def draw_sums(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns prompts [count, PROMPT] and their right answers [count, ANSWER]."""
    a, b = torch.randint(0, LARGEST + 1, (2, count))
    prompts = [a // 10, a % 10, torch.full_like(a, PLUS), b // 10, b % 10, torch.full_like(a, EQUALS)]
    answers = [(a + b) % 10, (a + b) // 10 % 10, (a + b) // 100]  # the last digit first, which is easier to learn
    return torch.stack(prompts, 1), torch.stack(answers, 1)


def log_probabilities(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the logarithms of the probabilities of the answers' tokens, [sequences, ANSWER]."""
    logits = model(tokens[:, :-1], use_cache=False).logits[:, PROMPT - 1:]
    return logits.float().log_softmax(-1).gather(-1, tokens[:, PROMPT:, None]).squeeze(-1)


class Trainer:
    """Trains the model in the daemon. A new one goes on where the last one was killed."""

    def __init__(self, options: argparse.Namespace):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed)
        self._options = options
        with pt.meta_init():
            self._model = make_model(options.width)
        self._sharded = pt.shard(self._model, name=NAME, units=[*self._model.model.layers, self._model],
                                 format=[("*norm*", "FP32"), ("*", options.format)], existing="resume", accumulate=1,
                                 socket_dir=options.socket_dir)
        self._optimizer = pt.AdamW(pt.decay_groups(self._model, 0.01), betas=(0.9, 0.95), max_grad_norm=1.0)
        self._sharded.track(rng=True)
        self._steps = self._sharded.start_step()  # that are committed

    def handle(self, batch: Arrays) -> Arrays:
        """Learns from a batch of rollouts; without one ends the supervised training. Answers when that is committed."""
        answer = self._learn(batch) if batch else self._warm_up()
        return answer | {"step": np.array(self._steps)}

    def _warm_up(self) -> Arrays:
        while self._steps < self._options.warm_up:
            tokens = torch.cat(draw_sums(self._options.prompts * self._options.group), 1).to(self._sharded.device)
            self._step(-log_probabilities(self._model, tokens).mean(), self._options.warm_up_rate)
        return {}

    def _learn(self, batch: Arrays) -> Arrays:
        tokens, then, rewards = (torch.tensor(batch[name], device=self._sharded.device)
                                 for name in ("tokens", "log_probabilities", "rewards"))
        groups = rewards.view(-1, self._options.group)  # answers to one prompt
        advantages = (groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-4)
        now = log_probabilities(self._model, tokens)
        ratio, gain = (now - then).exp(), advantages.view(-1, 1)
        self._step(-torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean(), self._options.rate)
        difference = (now - then).detach()
        return {"difference": difference.abs().max().cpu().numpy(),
                "kl": (difference.exp() - 1 - difference).mean().cpu().numpy()}

    def _step(self, loss: torch.Tensor, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._optimizer.last_result()  # waits for the commit: from here on a killed trainer does not lose the step
        self._steps += 1


class Rollouts:
    """Samples answers with the newest weights, and judges them."""

    def __init__(self, options: argparse.Namespace):
        torch.set_num_threads(1)
        torch.manual_seed(options.seed + 1)
        self._options = options
        self._engine = {"transformers": Generate, "vllm": Vllm}[options.engine](options)

    def handle(self, request: Arrays) -> Arrays:
        version = self._engine.update()
        prompts, sums = (each.repeat_interleave(self._options.group, 0) for each in draw_sums(self._options.prompts))
        answers, log_probabilities = self._engine.sample(prompts)
        return {"version": np.array(version), "tokens": torch.cat([prompts, answers], 1).numpy(),
                "log_probabilities": log_probabilities.numpy(), "rewards": (answers == sums).all(1).float().numpy()}


class Generate:
    """A plain model that follows the trainer's, and generate() of transformers."""

    def __init__(self, options: argparse.Namespace):
        self._model = make_model(options.width).to("cuda" if torch.cuda.is_available() else "cpu")
        self._follower = pt.follow(self._model, paramshard.Reader(NAME, socket_dir=options.socket_dir))

    def update(self) -> int:
        self._follower.update()
        return self._follower.version

    def sample(self, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self._model.generate(
            prompts.to(self._model.device), max_new_tokens=ANSWER, do_sample=True, top_k=0,
            return_dict_in_generate=True, output_logits=True)
        answers = output.sequences[:, PROMPT:]
        logits = torch.stack(output.logits, 1).float()
        return answers.cpu(), logits.log_softmax(-1).gather(-1, answers[..., None]).squeeze(-1).cpu()


class Vllm:
    """An engine of vLLM in this process, that takes the trainer's weights."""

    def __init__(self, options: argparse.Namespace):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm

        import paramshard.vllm
        with tempfile.TemporaryDirectory() as folder:
            make_model(options.width).save_pretrained(folder)
            self._llm = vllm.LLM(folder, dtype="float32", skip_tokenizer_init=True, enforce_eager=True,
                                 max_model_len=32, disable_log_stats=True, seed=options.seed, block_size=32,
                                 num_gpu_blocks_override=1024, weight_transfer_config={"backend": "paramshard"})
        self._llm.init_weight_transfer_engine({"init_info": {"model": NAME, "socket_dir": options.socket_dir}})
        self._load = paramshard.vllm.update
        self._sampling = vllm.SamplingParams(temperature=1.0, max_tokens=ANSWER, detokenize=False, ignore_eos=True,
                                             logprobs=0)

    def update(self) -> int:
        return int(self._load(self._llm).partition(":")[2])  # "HISTORY:COMMIT"

    def sample(self, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts.tolist()], self._sampling,
                                     use_tqdm=False)
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        sampled = [[each[token].logprob for each, token in zip(output.outputs[0].logprobs, answer)]
                   for output, answer in zip(outputs, answers)]
        return torch.tensor(answers), torch.tensor(sampled)


# --- Workers in processes ---


def pack(arrays: Arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(packed: bytes) -> Arrays:
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return dict(arrays)


def serve(kind: type, options: argparse.Namespace, pipe: multiprocessing.connection.Connection) -> None:
    worker = kind(options)
    with contextlib.suppress(EOFError):  # the main process has ended
        while True:
            pipe.send_bytes(pack(worker.handle(unpack(pipe.recv_bytes()))))


class Process:
    """A worker in a process of its own. Arrays go to it and back over a pipe."""

    dies_with = (EOFError, ConnectionError)

    def __init__(self, kind: type, options: argparse.Namespace):
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self._process = context.Process(target=serve, args=(kind, options, other_end), daemon=True)
        self._process.start()
        other_end.close()  # so that the pipe ends with the process

    def ask(self, request: Arrays) -> None:
        with contextlib.suppress(ConnectionError):  # answer() raises if the process has died
            self.pipe.send_bytes(pack(request))

    def answer(self) -> Arrays:
        return unpack(self.pipe.recv_bytes())

    def kill(self) -> None:
        self._process.kill()  # SIGKILL

    @staticmethod
    def wait(workers: Sequence[Process]) -> list[Process]:
        """Returns those that have answered or died."""
        ready = multiprocessing.connection.wait([worker.pipe for worker in workers])
        return [worker for worker in workers if worker.pipe in ready]


def actors() -> type:
    """Returns a class like Process, whose workers are actors of Ray on one node: the daemon's."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
    ray.init(num_cpus=2, include_dashboard=False)
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready())

    class Actor:
        dies_with = (ray.exceptions.RayActorError,)

        def __init__(self, kind: type, options: argparse.Namespace):
            strategy = PlacementGroupSchedulingStrategy(group, [Trainer, Rollouts].index(kind))
            self._actor = ray.remote(kind).options(num_cpus=1, scheduling_strategy=strategy).remote(options)

        def ask(self, request: Arrays) -> None:
            self.pending = self._actor.handle.remote(request)

        def answer(self) -> Arrays:
            return ray.get(self.pending)

        def kill(self) -> None:
            ray.kill(self._actor)

        @staticmethod
        def wait(workers: Sequence[Actor]) -> list[Actor]:
            ready, _ = ray.wait([worker.pending for worker in workers])
            return [worker for worker in workers if worker.pending in ready]

    return Actor


# --- The training ---


class Progress:
    """Prints a line every few seconds, and keeps the figures of all steps."""

    def __init__(self, report_every: float):
        self.steps: list[dict[str, float]] = []
        self._report_every = report_every
        self._printed, self._time = 0, time.monotonic()

    def add(self, step: int, batch: Arrays, answer: Arrays) -> None:
        self.steps.append({"step": step, "version": int(batch["version"]), "reward": float(batch["rewards"].mean()),
                           "kl": float(answer["kl"]), "difference": float(answer["difference"])})
        if time.monotonic() - self._time >= self._report_every:
            new = self.steps[self._printed:]
            print(f"step {step}: reward {mean(new, 'reward'):.3f}, rollouts of version {new[-1]['version']}, "
                  f"KL {mean(new, 'kl'):.1e}", flush=True)
            self._printed, self._time = len(self.steps), time.monotonic()


def mean(steps: Sequence[dict[str, float]], name: str) -> float:
    return sum(step[name] for step in steps) / len(steps)


def train(worker: type, options: argparse.Namespace) -> dict[str, Any]:
    """Trains until all steps are done, and returns the figures. While the trainer learns, new rollouts are made."""
    trainer, rollouts = worker(Trainer, options), worker(Rollouts, options)
    trainer.ask({})
    asked = [trainer]
    progress = Progress(options.report_every)
    kill: dict[str, float] = {}
    away = False  # the trainer, after it was killed
    step, kill_at, last = 0, options.warm_up + options.kill_at, options.warm_up + options.steps
    learned: Arrays | None = None  # the trainer's batch; None when it begins
    newest: Arrays | None = None  # a batch that it has not had
    while step < last:
        ready = worker.wait(asked)
        if rollouts in ready:
            asked.remove(rollouts)
            newest = rollouts.answer()
            if away:
                kill["batches"] += 1
        if trainer in ready:
            asked.remove(trainer)
            try:
                answer = trainer.answer()
            except worker.dies_with:
                if not away:
                    raise
                print(f"step {step + 1}: the trainer was killed in this step; a new one starts", flush=True)
                learned, begun = None, time.monotonic()
                trainer = worker(Trainer, options)
                trainer.ask({})
                asked.append(trainer)
            else:
                if int(answer["step"]) < step:
                    raise SystemExit(f"the daemon is at step {answer['step']}: step {step} was lost")
                step = int(answer["step"])
                if learned is not None:
                    progress.add(step, learned, answer)
                elif away:
                    away = False
                    kill |= {"resumed_at": step, "seconds": time.monotonic() - begun}
                    print(f"step {step}: the newest in the daemon; the new trainer goes on from it, after "
                          f"{kill['seconds']:.1f} s and {kill['batches']} batches of rollouts", flush=True)
                else:
                    print(f"step {step}: the supervised training is done", flush=True)
        if trainer not in asked and newest is not None:
            learned, newest = newest, None
            trainer.ask(learned)
            asked.append(trainer)
            if 0 < options.kill_at and step == kill_at and not kill:
                kill, away = {"killed_at": step, "batches": 0}, True
                trainer.kill()
        # While there is no trainer, each batch replaces the one before.
        if rollouts not in asked and step >= options.warm_up and (newest is None or away):
            rollouts.ask({})
            asked.append(rollouts)
    for each in (trainer, rollouts):
        each.kill()  # they have nothing that the daemon has not
    same = [each["difference"] for each in progress.steps if each["version"] == each["step"] - 1]
    return {"kill": kill, "steps": progress.steps, "largest_difference": max(same, default=None)}


@contextlib.contextmanager
def daemon(socket_dir: str | None) -> Iterator[str]:
    """Starts a daemon, which outlives trainers, unless there is one. Yields the folder of its sockets."""
    if socket_dir is not None:
        yield socket_dir
        return
    with tempfile.TemporaryDirectory(prefix="rl-grpo-") as folder:
        device = "cuda:0" if torch.cuda.is_available() else "cpu:0"
        command = [programs.path_of("paramshardd"), f"--socket-dir={folder}", f"--device={device}"]
        with open(pathlib.Path(folder, "log"), "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield folder
        finally:
            process.terminate()
            process.wait()


def draw(path: pathlib.Path, steps: Sequence[dict[str, float]], kill: dict[str, float]) -> None:
    try:
        import matplotlib
    except ImportError:
        print(f"{path} is not drawn: install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    numbers = [each["step"] for each in steps]
    pyplot.plot(numbers, [each["reward"] for each in steps], alpha=0.3)
    pyplot.plot(numbers, [mean(steps[max(0, end - 20):end], "reward") for end in range(1, len(steps) + 1)], color="C0")
    if kill:
        pyplot.axvline(kill["killed_at"], color="gray", linestyle="--")
        pyplot.text(kill["killed_at"], 0.02, " trainer killed")
    pyplot.ylim(0, 1)
    pyplot.xlabel("step")
    pyplot.ylabel("right answers")
    pyplot.savefig(path)
    print(f"rewards are drawn in {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800, help="steps of GRPO")
    parser.add_argument("--warm-up", type=int, default=120, help="supervised steps before")
    parser.add_argument("--kill-at", type=int, help="step of GRPO in which the trainer is killed; 0: in none; "
                                                    "default: at half of them")
    parser.add_argument("--prompts", type=int, default=32, help="of a batch")
    parser.add_argument("--group", type=int, default=8, help="answers to a prompt")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate of GRPO")
    parser.add_argument("--warm-up-rate", type=float, default=1e-3, help="learning rate of the supervised steps")
    parser.add_argument("--width", type=int, default=128, help="of the model, a multiple of 32")
    parser.add_argument("--format", default="FP8_BLOCK_128X128", help="format of matrices; norms stay FP32")
    parser.add_argument("--engine", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--ray", action="store_true", help="workers are actors of Ray, in a placement group")
    parser.add_argument("--socket-dir", help="of a running daemon; default: one is started")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report-every", type=float, default=3.0, help="seconds")
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("rewards.png"), help="PNG or SVG")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures of all steps")
    options = parser.parse_args()
    if options.kill_at is None:
        options.kill_at = options.steps // 2
    return options


def main() -> None:
    options = parse()
    begun = time.monotonic()
    with daemon(options.socket_dir) as options.socket_dir:
        figures = train(actors() if options.ray else Process, options)
    steps = figures["steps"]
    if not steps:
        raise SystemExit(f"{NAME} has all steps already: raise --steps, or delete it: "
                         f"paramshardctl --socket-dir={options.socket_dir} delete {NAME}")
    print(f"{len(steps)} steps in {time.monotonic() - begun:.0f} s: reward {mean(steps[:20], 'reward'):.3f} at first, "
          f"{mean(steps[-20:], 'reward'):.3f} at last")
    if figures["largest_difference"] is not None:
        print("log-probabilities of rollouts and trainer, at the same version: largest difference "
              f"{figures['largest_difference']:.1e}")
    draw(options.plot, steps, figures["kill"])
    if options.json is not None:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
