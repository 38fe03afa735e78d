"""HuggingFace's Trainer, beside itself without a daemon, and adapters of PEFT."""

import dataclasses
import functools
import pathlib
import re

import pytest
import torch

import paramshard
import paramshard.torch as pt
from models import DEVICE, batch_of

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from paramshard.torch.transformers import REFUSED_ARGUMENTS, TrainerMixin  # noqa: E402


class Trainer(TrainerMixin, transformers.Trainer):
    pass


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = batch_of(index, size=1)[0].cpu()
        return {"input_ids": tokens, "labels": tokens}


def _llama(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, **options))


def _arguments(folder, **options) -> "transformers.TrainingArguments":
    arguments = transformers.TrainingArguments(**{
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 1e-3,
        "weight_decay": 0.1, "max_grad_norm": 0.5, "logging_steps": 1, "report_to": [], "use_cpu": DEVICE == "cpu",
        "disable_tqdm": True, **options})
    arguments._n_gpu = min(arguments.n_gpu, 1)  # a Trainer without a daemon takes batches of all GPUs that it sees
    return arguments


def _shard(daemon, model: torch.nn.Module, layers: torch.nn.ModuleList, **options) -> pt.ShardedModel:
    return pt.shard(model, name="m", units=[*layers, model], socket_dir=str(daemon.socket_dir), **options)


def _logged(trainer: "transformers.Trainer", what: str) -> list[float]:
    return [entry[what] for entry in trainer.state.log_history if what in entry]


def test_a_trainer_trains_and_logs_as_without_a_daemon(daemon, tmp_path):
    plain = transformers.Trainer(model=_llama(), args=_arguments(tmp_path / "plain", save_strategy="no"),
                                 train_dataset=Sentences())
    plain.train()
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers, accumulate=1)
    ours = Trainer(model=model, args=_arguments(tmp_path / "ours", save_strategy="no", gradient_accumulation_steps=1),
                   train_dataset=Sentences(), sharded=sharded)
    ours.train()
    for what in ("loss", "grad_norm", "learning_rate"):
        assert len(_logged(ours, what)) == 12
        assert _logged(ours, what) == pytest.approx(_logged(plain, what), rel=1e-3)
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(sharded.read(name), parameter.detach().cpu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_trainer_evaluates_before_it_trains(daemon, tmp_path, call):
    plain = transformers.Trainer(model=_llama(), args=_arguments(tmp_path / "plain"), eval_dataset=Sentences())
    model = _llama()
    trainer = Trainer(model=model, args=_arguments(tmp_path / "ours", save_strategy="no"), train_dataset=Sentences(),
                      eval_dataset=Sentences(), sharded=_shard(daemon, model, model.model.layers))
    found = trainer.evaluate() if call == "evaluate" else trainer.predict(Sentences()).metrics
    expected = plain.evaluate() if call == "evaluate" else plain.predict(Sentences()).metrics
    loss = "eval_loss" if call == "evaluate" else "test_loss"
    assert found[loss] == pytest.approx(expected[loss], rel=1e-4)
    trainer.train()
    assert len(_logged(trainer, "loss")) == 12


def test_load_best_model_at_end(daemon, tmp_path):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)
    trainer = Trainer(model=model, train_dataset=Sentences(), eval_dataset=Sentences(), sharded=sharded,
                      args=_arguments(tmp_path, eval_strategy="epoch", save_strategy="epoch",
                                      load_best_model_at_end=True, metric_for_best_model="eval_loss",
                                      greater_is_better=True))
    trainer.train()
    best = transformers.LlamaForCausalLM.from_pretrained(trainer.state.best_model_checkpoint)
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")  # the worse of two, as was asked for
    for name, parameter in best.named_parameters():
        torch.testing.assert_close(sharded.read(name), parameter.detach(), rtol=0, atol=0)


class _Dies(transformers.TrainerCallback):
    """Raises in a given step, after the daemon has made it."""

    def __init__(self, step: int):
        self._step = step

    def on_step_end(self, args, state, control, **options) -> None:
        if state.global_step == self._step:
            raise KeyboardInterrupt


def _resumable(daemon, folder, **options) -> Trainer:
    model = _llama(attention_dropout=0.2)
    return Trainer(model=model, sharded=_shard(daemon, model, model.model.layers, existing="resume"),
                   train_dataset=Sentences(),
                   args=_arguments(folder, **{
                       "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
                       "lr_scheduler_type": "cosine", "save_strategy": "steps", "save_steps": 4, **options}))


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    weights = trainer.model.state_dict()
    trainer.sharded.close()
    return weights


def test_a_trainer_goes_on_from_the_daemons_step(start, tmp_path):
    """With dropout, shuffled batches, accumulation and a schedule: in an epoch, at its end, and at the end of all."""
    whole = _resumable(start(), tmp_path / "whole")
    whole.train()
    expected = _weights(whole)
    daemon = start()
    for step in (1, 4, 6):
        trainer = _resumable(daemon, tmp_path / "parts")
        trainer.add_callback(_Dies(step))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        trainer.sharded.close()
    last = _resumable(daemon, tmp_path / "parts")
    last.train()
    assert last.state.global_step == 12 and [entry["step"] for entry in last.state.log_history][:2] == [7, 8]
    for what in ("loss", "grad_norm", "learning_rate"):
        assert _logged(last, what) == _logged(whole, what)[6:]
    last.sharded.close()
    again = _resumable(daemon, tmp_path / "parts")
    assert again.train().global_step == 12
    for name, value in _weights(again).items():
        assert torch.equal(value, expected[name]), name


def test_a_training_that_has_ended_makes_no_other_step(daemon, tmp_path):
    """In the middle of an epoch, where Trainer itself goes on from a checkpoint of the last step with one more."""
    options = {"max_steps": 5, "lr_scheduler_type": "constant"}
    first = _resumable(daemon, tmp_path, **options)
    first.train()
    expected = _weights(first)
    for _ in range(2):
        again = _resumable(daemon, tmp_path, **options)
        assert again.train().global_step == 5
        for name, value in _weights(again).items():
            assert torch.equal(value, expected[name]), name


class _SavesInDaemon(transformers.TrainerCallback):
    """Saves a checkpoint of the daemon beside each checkpoint of Trainer."""

    def __init__(self, client: paramshard.Client):
        self._client = client

    def on_save(self, args, state, control, **options) -> None:
        assert self._client.save("m").saved


def test_a_checkpoint_of_the_daemons_step_adds_its_log(start, tmp_path):
    (tmp_path / "saves").mkdir()
    daemon = start(flags=("--keeper=off", f"--save-dir={tmp_path / 'saves'}"))
    with daemon.client() as client:
        first = _resumable(daemon, tmp_path)
        first.add_callback(_SavesInDaemon(client))
        first.add_callback(_Dies(9))
        with pytest.raises(KeyboardInterrupt):
            first.train()
        first.sharded.close()
        second = _resumable(daemon, tmp_path)
        with pytest.raises(paramshard.FailedPreconditionError, match="checkpoint of step 9, .* one of step 8"):
            second.train(resume_from_checkpoint=tmp_path / "checkpoint-8")
        second.sharded.close()
        client.restore("m", 8)
    third = _resumable(daemon, tmp_path)
    third.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert [entry["step"] for entry in third.state.log_history][:12] == list(range(1, 13))
    third.sharded.close()
    fourth = _resumable(daemon, tmp_path)
    assert fourth.train(resume_from_checkpoint=True).global_step == 12
    fourth.sharded.close()


def test_only_the_first_training_of_a_program_is_gone_on_with(daemon, tmp_path):
    trainer = _resumable(daemon, tmp_path)
    trainer.train()
    trainer.train()
    assert trainer.state.global_step == 12 and trainer.sharded.last_result().commit_number == 24
    trainer.sharded.close()
    other = _resumable(daemon, tmp_path)
    with pytest.raises(paramshard.FailedPreconditionError, match=r"in call 2 of train\(\)"):
        other.train()
    other.sharded.close()


def test_what_a_trainer_cannot_have_is_refused(daemon, tmp_path):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)
    trainer = Trainer(model=model, args=_arguments(tmp_path, save_strategy="steps", save_steps=6),
                      train_dataset=Sentences(), sharded=sharded)
    with pytest.raises(paramshard.UnimplementedError, match="has no moments"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    trainer.train()
    with pytest.raises(paramshard.UnimplementedError, match="has no moments"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


# --- Arguments ---


def _docs_table() -> dict[str, set[str]]:
    """The table of TrainingArguments in docs/train/pytorch.md: the names behind each of its three words."""
    page = pathlib.Path(__file__).parents[3] / "docs/train/pytorch.md"
    table = page.read_text().partition("<!-- training arguments: begin")[2].partition("<!-- training arguments: end")[0]
    rows = [line.split("|") for line in table.splitlines() if "`" in line]
    return {row[1].strip(): set(re.findall(r"`(\w+)`", row[2])) for row in rows}


def test_every_training_argument_is_honoured_refused_or_without_effect():
    table = _docs_table()
    assert set(table) == {"honoured", "refused", "no effect"}
    listed = [name for names in table.values() for name in names]
    assert len(listed) == len(set(listed))
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert fields - set(listed) == set(), "not in docs/train/pytorch.md, which says what becomes of each"
    assert set(listed) - fields == set()
    assert table["refused"] == set(REFUSED_ARGUMENTS)


REFUSED = {
    "auto_find_batch_size": True, "bf16_full_eval": True, "ddp_broadcast_buffers": True, "debug": "underflow_overflow",
    "deepspeed": {"zero_optimization": {"stage": 3}}, "fp16": True, "fp16_full_eval": True, "fsdp": True,
    "liger_kernel_config": {"rope": True}, "parallelism_config": object(), "use_liger_kernel": True}


@pytest.mark.parametrize("name", sorted(REFUSED_ARGUMENTS))
def test_refused_arguments_are_named(daemon, tmp_path, name):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)
    arguments = _arguments(tmp_path)
    setattr(arguments, name, REFUSED[name])  # some ask for packages when they are given
    with pytest.raises(paramshard.UnimplementedError, match=f"Trainer: {name}="):
        Trainer(model=model, args=arguments, train_dataset=Sentences(), sharded=sharded)
    sharded.close()


@pytest.mark.parametrize("optim", [name for name in transformers.training_args.OptimizerNames
                                   if name not in ("adamw_torch", "adamw_torch_fused")], ids=str)
def test_other_optimizers_of_training_arguments_are_named(tmp_path, optim):
    trainer = Trainer.__new__(Trainer)
    trainer.args, trainer.optimizer_cls_and_kwargs = _arguments(tmp_path), None
    trainer.args.optim = optim
    with pytest.raises(paramshard.UnimplementedError, match=f"optim={optim.value}"):
        trainer._adamw_options()


class _MakesSgd(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return self.optimizer


class _ChoosesSgd(Trainer):
    @staticmethod
    def get_optimizer_cls_and_kwargs(args, model=None):
        return torch.optim.SGD, {"lr": 0.1}


def test_what_is_asked_for_beside_adamw_is_named(daemon, tmp_path):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)

    def make(kind=Trainer, arguments=None, **options):
        return kind(train_dataset=Sentences(), sharded=sharded, args=_arguments(tmp_path, **(arguments or {})),
                    **({"model": model} | options))

    other = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(sgd)
    for named, use in {
            "optim=adamw_torch with optim_args=amsgrad=True":
                lambda: make(arguments={"optim": "adamw_torch", "optim_args": "amsgrad=True"}),
            "optim=sgd": lambda: make(arguments={"optim": "sgd"}),
            "optim=adamw_torch_fused is SGD": lambda: make(_ChoosesSgd),
            "optimizer_cls_and_kwargs is SGD": lambda: make(optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1})),
            "optimizer_cls_and_kwargs with amsgrad":
                lambda: make(optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": 0.1, "amsgrad": True})),
            "SGD as optimizer": lambda: make(optimizers=(sgd, None)),
            "model_init": lambda: make(model=None, model_init=_llama),
            "SGD": lambda: make(_MakesSgd).train()}.items():
        with pytest.raises(paramshard.UnimplementedError, match=named):
            use()
    with pytest.raises(paramshard.InvalidArgumentError, match="model.embed_tokens.weight"):
        make(model=_llama())
    with pytest.raises(paramshard.InvalidArgumentError, match="ConstantLR of another optimizer"):
        make(optimizers=(None, scheduler)).train()
    sharded.close()


def test_more_micro_batches_than_the_model_takes_are_refused(daemon, tmp_path):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers, accumulate=2)
    make = functools.partial(Trainer, model=model, train_dataset=Sentences(), sharded=sharded)
    with pytest.raises(paramshard.InvalidArgumentError, match=r"steps=3: give shard\(\) accumulate=3, got 2"):
        make(args=_arguments(tmp_path, gradient_accumulation_steps=3))
    make(args=_arguments(tmp_path, gradient_accumulation_steps=2))
    sharded.close()


# Arguments that change a training, on both sides alike.
CHANGES = {
    "betas": {"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-3, "optim": "adamw_torch"},
    "bf16": {"bf16": True},
    "checkpointing": {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}},
    "compile": {"torch_compile": True, "torch_compile_backend": "eager"},
    "noise": {"neftune_noise_alpha": 5.0},
    "smoothing": {"label_smoothing_factor": 0.3},
    "schedule": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.5},
                 "warmup_steps": 2},
    "accumulation": {"gradient_accumulation_steps": 3},
    "no clipping": {"max_grad_norm": 0.0},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 2, "bf16": True, "eval_on_start": True},
}


@pytest.mark.parametrize("options", CHANGES.values(), ids=CHANGES)
def test_arguments_change_what_they_change_without_a_daemon(daemon, tmp_path, options):
    logs = []
    for kind in (transformers.Trainer, Trainer):
        model = _llama()
        more = {"sharded": _shard(daemon, model, model.model.layers)} if kind is Trainer else {}
        trainer = kind(model=model, train_dataset=Sentences(), eval_dataset=Sentences(), **more,
                       args=_arguments(tmp_path, **{"save_strategy": "no", "max_steps": 4, **options}))
        trainer.train()
        logs.append({what: _logged(trainer, what) for what in ("loss", "learning_rate", "eval_loss")})
    expected, found = logs
    assert expected["loss"] and found.keys() == expected.keys()
    for what, values in expected.items():
        assert found[what] == pytest.approx(values, rel=1e-3), what


# Optimizers of the script: torch's, ours, and their options.
MADE = {"AdamW": (torch.optim.AdamW, pt.AdamW, {"lr": 1e-2, "betas": (0.8, 0.9), "weight_decay": 0.2}),
        "SGD": (torch.optim.SGD, pt.SGD, {"lr": 0.1, "momentum": 0.9})}


@pytest.mark.parametrize("plain, ours, options", MADE.values(), ids=MADE)
def test_an_optimizer_and_a_schedule_of_the_script_are_used(daemon, tmp_path, plain, ours, options):
    logs = []
    for kind, make in ((transformers.Trainer, plain), (Trainer, ours)):
        model = _llama()
        more = {"sharded": _shard(daemon, model, model.model.layers)} if kind is Trainer else {}
        optimizer = make(model.parameters(), **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        trainer = kind(model=model, args=_arguments(tmp_path, save_strategy="no"), train_dataset=Sentences(),
                       optimizers=(optimizer, schedule), **more)
        trainer.train()
        logs.append({what: _logged(trainer, what) for what in ("loss", "grad_norm", "learning_rate")})
    for what, values in logs[0].items():
        assert logs[1][what] == pytest.approx(values, rel=1e-3), what


def test_a_trainer_trains_by_muon(daemon, tmp_path):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)
    matrices = [each for each in model.model.layers.parameters() if each.dim() == 2]
    others = [each for each in model.parameters() if all(each is not one for one in matrices)]
    optimizer = pt.Muon([{"params": matrices}, {"params": others, "use_muon": False, "lr": 1e-2}], lr=0.02)
    trainer = Trainer(model=model, sharded=sharded, train_dataset=Sentences(), optimizers=(optimizer, None),
                      args=_arguments(tmp_path, save_strategy="no", num_train_epochs=4))
    trainer.train()
    losses = _logged(trainer, "loss")
    assert trainer.state.global_step == 24 and losses[-1] < 0.9 * losses[0]
    assert optimizer.max_grad_norm == 0.5 and optimizer.param_groups[0]["lr"] < 0.02
    sharded.close()


def test_an_optimizer_class_of_adamw_is_used(daemon, tmp_path):
    model = _llama()
    trainer = Trainer(model=model, sharded=_shard(daemon, model, model.model.layers), train_dataset=Sentences(),
                      args=_arguments(tmp_path), optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": 0.5}))
    assert {group["lr"] for group in trainer.create_optimizer().param_groups} == {0.5}


def test_adapters_of_peft(daemon, tmp_path):
    peft = pytest.importorskip("peft")
    models = []
    for _ in range(2):
        base = _llama()
        models.append(peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])))
    plain, model = models
    frozen = {name: value.clone() for name, value in plain.state_dict().items() if "lora" not in name}
    expected = transformers.Trainer(model=plain, args=_arguments(tmp_path / "plain", save_strategy="no"),
                                    train_dataset=Sentences())
    expected.train()
    sharded = _shard(daemon, model, model.base_model.model.model.layers)
    trainer = Trainer(model=model, args=_arguments(tmp_path / "run", save_strategy="no"), train_dataset=Sentences(),
                      sharded=sharded)
    trainer.train()
    assert _logged(trainer, "loss") == pytest.approx(_logged(expected, "loss"), rel=1e-4)
    after = model.state_dict()
    for name, value in frozen.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0)
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(_llama(), tmp_path / "adapter").state_dict()
    adapters = [name for name in loaded if "lora_B" in name]
    assert adapters and all(loaded[name].abs().sum() > 0 for name in adapters)
    torch.testing.assert_close({name: loaded[name] for name in after}, after, rtol=0, atol=0)


def test_adapters_on_a_folder_of_their_base_model(daemon, tmp_path):
    """Weights go from the folder into the daemon without a copy in memory, and adapters are made there."""
    peft = pytest.importorskip("peft")
    base = _llama()
    base.save_pretrained(tmp_path / "base")
    with pt.meta_init():
        model = peft.get_peft_model(_llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"],
                                                              modules_to_save=["lm_head"]))
    sharded = _shard(daemon, model, model.base_model.model.model.layers)
    sharded.load_pretrained(tmp_path / "base")
    trainer = Trainer(model=model, train_dataset=Sentences(), eval_dataset=Sentences(), sharded=sharded,
                      args=_arguments(tmp_path / "run", eval_strategy="epoch", save_strategy="epoch",
                                      load_best_model_at_end=True, metric_for_best_model="eval_loss",
                                      greater_is_better=True))
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")
    after = model.state_dict()
    values = {name: value for name, value in after.items() if "lora_" not in name and "modules_to_save" not in name}
    for name, value in values.items():
        own = name.removeprefix("base_model.model.").replace("base_layer.", "").replace("original_module.", "")
        assert torch.equal(value, base.get_parameter(own)), name
    loaded = peft.PeftModel.from_pretrained(_llama(), trainer.state.best_model_checkpoint).state_dict()
    assert any("lora_B" in name and value.abs().sum() > 0 for name, value in loaded.items())
    torch.testing.assert_close({name: loaded[name] for name in after}, after, rtol=0, atol=0)
