"""A training by HuggingFace's Trainer on two ranks: the first saves by itself, and they die where they are told to.

    torchrun --nproc-per-node 2 ... hf_trainer.py FOLDER [RANK STEP ...]

Rank 0 saves the model behind step 3, into FOLDER/saved, when rank 1 has begun the next step; it writes what it has read
then to FOLDER/read.pt, and the weights at the end to FOLDER/weights.pt. A rank that is to die does so once, in the step
after STEP, and torchrun starts both again. Every rank writes the steps that it has begun with to FOLDER/begun-RANK.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
import transformers

import paramshard.torch as pt
from models import DEVICE, batch_of
from paramshard.torch.transformers import TrainerMixin

SAVED_STEP = 3


class Trainer(TrainerMixin, transformers.Trainer):
    pass


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = batch_of(index, size=1)[0].cpu()
        return {"input_ids": tokens, "labels": tokens}


class Saves(transformers.TrainerCallback):
    """Rank 1 tells that it has begun the next step, and rank 0 waits for that before it saves."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.trainer: Trainer | None = None
        self._told = torch.zeros(1, device=DEVICE)

    def on_step_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        if state.global_step == SAVED_STEP and self.trainer.sharded.rank == 1:
            dist.send(self._told, 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        if state.global_step != SAVED_STEP or self.trainer.sharded.rank != 0:
            return
        dist.recv(self._told, 1)
        self.trainer.save_model(str(self.folder / "saved"))
        sharded = self.trainer.sharded
        torch.save({name: sharded.read(name) for name, _ in sharded.module.named_parameters()}, self.folder / "read.pt")


class Deaths(transformers.TrainerCallback):
    def __init__(self, folder: pathlib.Path, rank: int, deaths: set[tuple[int, int]]):
        self._folder = folder
        self._rank = rank
        self._deaths = deaths

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        marker = self._folder / f"died-{self._rank}-{state.global_step}"
        if (self._rank, state.global_step) in self._deaths and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: pathlib.Path, deaths: set[tuple[int, int]]) -> None:
    torch.set_num_threads(1)
    # Messages between ranks beside the daemon are switched off, so that no rank waits for another in them.
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "run"), per_device_train_batch_size=2, num_train_epochs=1, learning_rate=1e-2,
        lr_scheduler_type="cosine", logging_strategy="no", save_strategy="no", average_tokens_across_devices=False,
        report_to=[], use_cpu=DEVICE == "cpu", disable_tqdm=True)
    with pt.meta_init():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.2, tie_word_embeddings=False))
    sharded = pt.shard(model, name="llama", units=[*model.model.layers, model],
                       socket_dir=os.environ["PARAMSHARD_TEST_SOCKETS"])
    saves = Saves(folder)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), sharded=sharded,
                      callbacks=[saves, Deaths(folder, sharded.rank, deaths)])
    saves.trainer = trainer
    trainer.create_optimizer()
    with (folder / f"begun-{sharded.rank}").open("a") as begun:
        begun.write(f"{sharded.start_step()}\n")
    trainer.train()
    weights = {name: sharded.read(name) for name, _ in model.named_parameters()}
    if sharded.rank == 0:
        torch.save(weights, folder / "weights.pt")
    sharded.close()


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[2:]]
    main(pathlib.Path(sys.argv[1]), set(zip(words[::2], words[1::2])))
