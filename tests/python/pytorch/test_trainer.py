"""HuggingFace's Trainer, beside itself without a daemon, and adapters of PEFT."""

import pytest
import torch

import paramshard
import paramshard.torch as pt
from models import batch_of

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from paramshard.torch.transformers import TrainerMixin  # noqa: E402


class Trainer(TrainerMixin, transformers.Trainer):
    pass


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = batch_of(index, size=1)[0]
        return {"input_ids": tokens, "labels": tokens}


def _llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False))


def _arguments(folder, **options) -> "transformers.TrainingArguments":
    return transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-3,
        weight_decay=0.1, max_grad_norm=0.5, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, **options)


def _shard(daemon, model: torch.nn.Module, layers: torch.nn.ModuleList) -> pt.ShardedModel:
    return pt.shard(model, name="m", units=[*layers, model], socket_dir=str(daemon.socket_dir))


def _logged(trainer: "transformers.Trainer", what: str) -> list[float]:
    return [entry[what] for entry in trainer.state.log_history if what in entry]


def test_a_trainer_trains_and_logs_as_without_a_daemon(daemon, tmp_path):
    plain = transformers.Trainer(model=_llama(), args=_arguments(tmp_path / "plain", save_strategy="no"),
                                 train_dataset=Sentences())
    plain.train()
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)
    ours = Trainer(model=model, args=_arguments(tmp_path / "ours", save_strategy="no", gradient_accumulation_steps=1),
                   train_dataset=Sentences(), sharded=sharded)
    ours.train()
    for what in ("loss", "grad_norm", "learning_rate"):
        assert len(_logged(ours, what)) == 12
        assert _logged(ours, what) == pytest.approx(_logged(plain, what), rel=1e-3)
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(sharded.read(name), parameter.detach(), rtol=1e-5, atol=1e-5)


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


def test_what_a_trainer_cannot_have_is_refused(daemon, tmp_path):
    model = _llama()
    sharded = _shard(daemon, model, model.model.layers)
    trainer = Trainer(model=model, args=_arguments(tmp_path, save_strategy="steps", save_steps=6),
                      train_dataset=Sentences(), sharded=sharded)
    trainer.train()
    with pytest.raises(paramshard.UnimplementedError, match="it has no moments"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    with pytest.raises(paramshard.UnimplementedError, match="no optimizer expected"):
        Trainer(model=model, args=_arguments(tmp_path), train_dataset=Sentences(), sharded=sharded,
                optimizers=(trainer.optimizer, None))


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
