"""Fine-tunes a causal language model of HuggingFace on a text, with weights and optimizer in a paramshard daemon.

    python finetune_hf.py FOLDER --text FILE                    # FOLDER has config.json and safetensors
    python finetune_hf.py FOLDER --text FILE --random-init      # nothing to download: makes a tiny Llama there first
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \\
        torchrun --standalone --nproc-per-node 2 --max-restarts 3 finetune_hf.py FOLDER --text FILE --lora

Tokens come from FOLDER's tokenizer, if it has one, else they are the bytes of the text. With --lora the weights stay as
they are, and adapters of PEFT are trained. torchrun starts a killed worker again, and Trainer goes on from the step
that the daemon has; without the variable its process group may hang then (pytorch#135712). GPUs are used if there are
any (CUDA_VISIBLE_DEVICES= hides them).

Progress goes to standard output; at the end the result is saved into --out, and the losses are drawn into --plot if
matplotlib is installed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import pathlib
import time
from typing import Any

import torch
import transformers
from torch import nn

import paramshard
import paramshard.torch as pt
from paramshard.torch.transformers import TrainerMixin

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Trainer(TrainerMixin, transformers.Trainer):
    pass


class Pieces(torch.utils.data.Dataset):
    """Consecutive pieces of a text; Trainer draws them in another order in each epoch, and deals them out to ranks."""

    def __init__(self, tokens: list[int], length: int):
        self._pieces = torch.tensor(tokens[:len(tokens) // length * length]).view(-1, length)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._pieces[index], "labels": self._pieces[index]}


class Progress(transformers.TrainerCallback):
    """Prints what Trainer logs, on the first rank."""

    def __init__(self, sharded: pt.ShardedModel, tokens_per_step: int):
        self._sharded = sharded
        self._tokens_per_step = tokens_per_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._begun, self._begun_step = time.monotonic(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **rest: Any) -> None:
        if not state.is_world_process_zero or "loss" not in logs:
            return
        tokens = (state.global_step - self._begun_step) * self._tokens_per_step
        print(f"step {state.global_step}: loss {logs['loss']:.3f}, gradient norm {logs['grad_norm']:.3f}, "
              f"{tokens / (time.monotonic() - self._begun):.0f} tokens/s, "
              f"{self._sharded.gathered_bytes() / 1e6:.0f} MB gathered", flush=True)


def make_tiny_llama(folder: pathlib.Path) -> None:
    """Saves a model with random weights, and a token for each byte."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=4,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                                      bos_token_id=None, eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def read_tokens(path: pathlib.Path, folder: pathlib.Path,
                vocabulary: int) -> tuple[list[int], transformers.PreTrainedTokenizerBase | None]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        text = file.read()
    if any((folder / name).exists() for name in TOKENIZER_FILES):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer
    if vocabulary < 256:
        raise SystemExit(f"{folder}: want a tokenizer, or a vocabulary of 256 bytes, got {vocabulary} tokens")
    return list(text.encode()), None


def make_model(config: transformers.PretrainedConfig, lora: bool) -> tuple[nn.Module, list[nn.Module]]:
    """Makes the model, without memory. Returns it and its blocks, which are gathered one by one."""
    with pt.meta_init():
        model = transformers.AutoModelForCausalLM.from_config(config)
        blocks = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
        if lora:
            import peft
            model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    return model, blocks


def formats(model: nn.Module, of_matrices: str) -> list[tuple[str, str]]:
    """Returns formats by name: norms, biases and adapters stay FP32, because they are small or trained."""
    plain = {"*." + ".".join(name.split(".")[-2:]) for name, parameter in model.named_parameters()
             if parameter.dim() < 2 or "lora_" in name}
    return [*((pattern, "FP32") for pattern in sorted(plain)), ("*", of_matrices)]


def draw(path: pathlib.Path, log: list[dict[str, float]]) -> None:
    try:
        import matplotlib
    except ImportError:
        print(f"{path} is not drawn: install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.plot(*zip(*((entry["step"], entry["loss"]) for entry in log if "loss" in entry)))
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(path)
    print(f"losses are drawn in {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="model: config.json, safetensors, and a tokenizer")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="a text file, or one packed by gzip")
    parser.add_argument("--random-init", action="store_true", help="makes a tiny model in FOLDER, unless there is one")
    parser.add_argument("--lora", action="store_true", help="trains adapters of PEFT instead of the weights")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("finetuned"), help="folder of the result")
    parser.add_argument("--name", default="finetune-hf", help="name of the model in the daemon")
    parser.add_argument("--existing", default="error", help='"resume" or "fresh", if the daemon has the model')
    parser.add_argument("--daemon", default="job", help='"job", which starts one, or "node": a running one')
    parser.add_argument("--format", default="FP8_BLOCK_128X128", help="format of matrices")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="pieces of a rank in a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a piece")
    parser.add_argument("--rate", type=float, help="default: 3e-3 with --random-init, 3e-4 with --lora, else 2e-5")
    parser.add_argument("--report-every", type=int, default=20)
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("losses.png"), help="PNG of the losses")
    options = parser.parse_args()
    options.rate = options.rate or (3e-3 if options.random_init else 3e-4 if options.lora else 2e-5)
    return options


def main() -> None:
    options = parse()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    arguments = transformers.TrainingArguments(
        output_dir=str(options.out), max_steps=options.steps, per_device_train_batch_size=options.batch,
        learning_rate=options.rate, lr_scheduler_type="cosine", warmup_steps=options.steps // 20, weight_decay=0.1,
        logging_steps=options.report_every, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not has_gpu,
        dataloader_pin_memory=has_gpu)
    with arguments.main_process_first():
        if options.random_init and not (options.folder / "config.json").exists():
            make_tiny_llama(options.folder)
    config = transformers.AutoConfig.from_pretrained(options.folder)
    tokens, tokenizer = read_tokens(options.text, options.folder, config.vocab_size)
    model, blocks = make_model(config, options.lora)
    sharded = pt.shard(model, name=options.name, units=[*blocks, model], existing=options.existing,
                       format=formats(model, options.format), daemon=options.daemon,
                       accumulate=arguments.gradient_accumulation_steps,
                       param_dtype=torch.bfloat16 if has_gpu else torch.float32)
    sharded.load_pretrained(options.folder)
    progress = Progress(sharded, options.batch * options.length * arguments.world_size)
    trainer = Trainer(model=model, args=arguments, train_dataset=Pieces(tokens, options.length),
                      processing_class=tokenizer, sharded=sharded, callbacks=[progress])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"the result is in {options.out}")
        draw(options.plot, trainer.state.log_history)
    sharded.close()


if __name__ == "__main__":
    try:
        main()
    except paramshard.AlreadyExistsError as error:
        raise SystemExit(str(error)) from None
