"""Origin of an opened model's values: every cell of the table in docs/train/pytorch.md."""

import itertools
import os
import pathlib
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import paramshard
import paramshard.torch as pt
from paramshard import _core
from paramshard.spec import ParameterGroup
from paramshard.torch.master_values import to_import
from paramshard.torch.model_description import Matrices, OptimizerPlan
from paramshard.torch.opening import Decision, ScriptValues, decide

ORIGINS = _core.VALUE_ORIGINS
CALLS = ("error", "resume", "fresh", "own run")
BRINGS = ("nothing", "a module with values", "load_pretrained", "load_state_dict")
ERRORS = {"importing": paramshard.FailedPreconditionError, "lost": paramshard.DataLossError}


def _table() -> dict[tuple[str, str, bool], Decision]:
    """By origin, call, and whether the script brings values. The page says of "fresh" that it always deletes."""
    page = pathlib.Path(__file__).parents[3] / "docs/train/pytorch.md"
    brought = {"none": (False,), "values": (True,), "either": (False, True)}
    cells = {}
    for origins, brings, *decisions in re.findall(
            r"^\| (`\w+`(?:, `\w+`)*) \| (none|values|either) \| (\w+) \| (\w+) \| (\w+) \|$", page.read_text(),
            re.MULTILINE):
        for origin, brings_values in itertools.product(re.findall(r"\w+", origins), brought[brings]):
            decided = dict(zip(("error", "resume", "own run"), decisions), fresh="delete")
            cells |= {(origin, call, brings_values): Decision(decided[call]) for call in CALLS}
    return cells


TABLE = _table()


def test_the_table_is_the_rule():
    assert TABLE.keys() == set(itertools.product(ORIGINS, CALLS, (False, True)))
    for (origin, call, brings), decision in TABLE.items():
        if call == "own run":
            for existing in ("error", "resume", "fresh"):
                assert decide(origin, existing, has_values=brings, same_run=True) is decision, (origin, existing, brings)
        else:
            assert decide(origin, call, has_values=brings, same_run=False) is decision, (origin, call, brings)


class Script:
    """One that opens a model of its own name, and brings its values in one way."""

    def __init__(self, daemon, name: str, brings: str, folder: pathlib.Path):
        self.daemon = daemon
        self.name = name
        self.brings = brings
        self.folder = folder
        self.values = {"weight": torch.arange(12.0).view(3, 4) + 1, "bias": torch.full((3,), 7.0)}
        save_file(self.values, folder / "model.safetensors")

    def open(self, existing: str = "error") -> tuple[nn.Module, pt.ShardedModel, pt.AdamW]:
        if self.brings == "a module with values":
            model = nn.Linear(4, 3)
            model.load_state_dict(self.values)
        else:
            with pt.meta_init():
                model = nn.Linear(4, 3)
        sharded = pt.shard(model, name=self.name, units=[model], existing=existing,
                           socket_dir=str(self.daemon.socket_dir))
        if self.brings == "load_pretrained":
            sharded.load_pretrained(self.folder)
        elif self.brings == "load_state_dict":
            model.load_state_dict(self.values)
        return model, sharded, pt.AdamW(model.parameters(), lr=0.5)

    def has_values(self, sharded: pt.ShardedModel) -> bool:
        return all(torch.equal(sharded.read(name), value) for name, value in self.values.items())


def _damage(path: str) -> None:
    """Flips a bit of the first tensor of a checkpoint, behind the header, which begins with its length."""
    file = next(pathlib.Path(path).glob("rank-*"))
    content = bytearray(file.read_bytes())
    content[8 + int.from_bytes(content[:8], "little")] ^= 1
    file.write_bytes(content)


def _creator_of(script: Script) -> Script:
    """Describes the same model with other initial values: in meta_init() where the script has values, and else with
    values."""
    brings = "nothing" if script.brings == "a module with values" else "a module with values"
    return Script(script.daemon, script.name, brings, script.folder)


def _bring_to(script: Script, client: paramshard.Client, origin: str, run: str) -> None:
    """Makes a model with values of this origin, of which all are 2, or a step away from that."""
    model, sharded, optimizer = script.open()
    spec = sharded._description.spec()
    sharded.close()
    client.delete_model(script.name)
    client.create_model(spec, values_follow=origin == "importing", run=run)
    if origin in ("initial", "importing"):
        return
    client.import_tensors(script.name, {"weight": torch.full((3, 4), 2.0), "bias": torch.full((1, 3), 2.0)}, run=run)
    if origin == "imported":
        return
    with client.open_model(spec) as trained:
        gradients = trained.gradients(spec.units[0].name)
        for parameter in ("weight", "bias"):
            gradients[parameter][...] = 1.0
        gradients.push()
        trained.commit(learning_rate=0.5, client_state=_state_of(run)).wait()
    if origin == "trained":
        return
    saved = client.save(script.name)
    if origin == "restored":
        client.delete_model(script.name)
        client.create_model(spec, restore="latest")
    else:
        _damage(saved.path)
        with pytest.raises(paramshard.DataLossError):
            client.restore(script.name)


def _state_of(run: str) -> bytes:
    from paramshard.torch.tracked_state import _RUN, pack
    return pack({_RUN: run})


@pytest.fixture
def saving(start: Callable, tmp_path: pathlib.Path):
    (tmp_path / "saves").mkdir()
    return start(flags=("--keeper=off", f"--save-dir={tmp_path / 'saves'}"))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("brings", BRINGS)
@pytest.mark.parametrize("creator", ("alike", "another"))
def test_every_cell_holds(saving, tmp_path, monkeypatch, call, brings, creator):
    own = call == "own run"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this run")
    with saving.client() as client:
        for origin in ORIGINS:
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
            name = f"{origin} model"
            script = Script(saving, name, brings, tmp_path)
            if creator == "another" and origin == "initial" and brings == "nothing":
                continue  # initial values of two kinds: they differ
            _bring_to(script if creator == "alike" else _creator_of(script), client, origin,
                      "this run" if own else "another run")
            assert _origin(client, name) == origin
            step = 0 if origin in ("initial", "importing", "imported") else 1
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1" if own else "0")
            decision = TABLE[origin, call, brings != "nothing"]
            error = None
            if decision is Decision.REFUSE:
                error = ERRORS.get(origin, paramshard.AlreadyExistsError)
            elif decision is Decision.KEEP and origin == "lost":
                error = paramshard.DataLossError
            if error is not None:
                with pytest.raises(error):
                    script.open("error" if own else call)
                assert _origin(client, name) == origin
                continue
            _, sharded, _ = script.open("error" if own else call)
            begins = decision is Decision.DELETE
            assert sharded.start_step() == (0 if begins else step), origin
            if begins or decision is Decision.FILL:
                assert script.has_values(sharded) == (brings != "nothing"), origin
                assert _origin(client, name) == ("initial" if brings == "nothing" else "imported")
            elif origin != "initial":
                torch.testing.assert_close(sharded.read("weight"), torch.full((3, 4), 2.0 - 0.5 * step))
            sharded.close()


def _origin(client: paramshard.Client, name: str) -> str:
    return next(known.origin for known in client.models() if known.name == name)


def test_initial_values_are_the_models_until_others_come(saving, tmp_path):
    """A script that has some values drawn does not get values of another description."""
    with pt.meta_init():
        first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    nn.init.constant_(second.bias, 3.0)
    sharded = pt.shard(first, name="m", units=[first], socket_dir=str(saving.socket_dir))
    sharded.open()
    sharded.close()
    other = pt.shard(second, name="m", units=[second], socket_dir=str(saving.socket_dir))
    second.load_state_dict({"weight": torch.ones(3, 4)}, strict=False)
    with pytest.raises(paramshard.AlreadyExistsError, match="bias"):
        other.open()


def _drawn(daemon, name: str, **options) -> torch.Tensor:
    with pt.meta_init():
        model = nn.Linear(4, 3)
    with pt.shard(model, name=name, units=[model], socket_dir=str(daemon.socket_dir), **options) as sharded:
        sharded.open()
        return sharded.read("weight")


def test_the_seed_of_torch_and_the_name_decide_what_is_drawn(daemon):
    drawn = []
    for name, seed in (("a", 1), ("b", 1), ("a", 2)):
        torch.manual_seed(seed)
        drawn.append(_drawn(daemon, name, existing="fresh"))
    torch.manual_seed(1)
    assert torch.equal(drawn[0], _drawn(daemon, "a", existing="fresh"))
    for i, j in itertools.combinations(range(3), 2):
        assert not torch.equal(drawn[i], drawn[j])
    assert torch.equal(_drawn(daemon, "c", seed=7), _drawn(daemon, "d", seed=7))


def test_a_script_that_names_no_seed_keeps_that_of_the_model(daemon):
    torch.manual_seed(1)
    first = _drawn(daemon, "m")
    torch.manual_seed(2)
    assert torch.equal(first, _drawn(daemon, "m"))
    torch.seed()
    assert torch.equal(first, _drawn(daemon, "m"))
    with pytest.raises(paramshard.AlreadyExistsError, match="seed"):
        _drawn(daemon, "m", seed=5)


def test_a_resumed_model_that_is_not_there_is_told(daemon, tmp_path, caplog):
    for name, existing in (("there", "error"), ("typo", "resume"), ("typo", "resume")):
        _, sharded, _ = Script(daemon, name, "nothing", tmp_path).open(existing)
        sharded.close()
    assert ["typo" in record.message and "there" in record.message for record in caplog.records
            if "a new one begins" in record.message] == [True]


def test_a_kept_model_is_told_only_when_it_is_open(saving, tmp_path, caplog):
    script = Script(saving, "m", "a module with values", tmp_path)
    with saving.client() as client:
        _bring_to(script, client, "lost", "another run")
    with pytest.raises(paramshard.DataLossError):
        script.open("resume")
    assert not any("values that this script brings" in record.message for record in caplog.records)


def test_yielding_to_steps_is_one_line_of_the_log(saving, tmp_path, caplog):
    script = Script(saving, "m", "load_pretrained", tmp_path)
    model, sharded, optimizer = script.open()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    sharded.close()
    _, sharded, _ = script.open("resume")
    sharded.close()
    assert ["values that this script brings" in record.message for record in caplog.records
            if record.name == "paramshard"] == [True]


def test_a_fresh_model_does_not_ask_for_the_daemons_restore(start, tmp_path):
    (tmp_path / "saves").mkdir()
    saves = f"--save-dir={tmp_path / 'saves'}"
    daemon = start(flags=("--keeper=off", saves))
    script = Script(daemon, "m", "nothing", tmp_path)
    model, sharded, optimizer = script.open()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    sharded.close()
    with daemon.client() as client:
        client.save("m")
    daemon.stop()
    script.daemon = start(flags=("--keeper=off", saves, "--restore=latest"))
    _, sharded, _ = script.open("fresh")
    assert sharded.start_step() == 0
    sharded.close()
    with script.daemon.client() as client:
        assert [saved.name for saved in (tmp_path / "saves" / "m").iterdir() if saved.is_dir()], "checkpoints stay"
        client.delete_model("m")
    with pytest.raises(paramshard.AlreadyExistsError, match="restored"):
        script.open("error")
    _, sharded, _ = script.open("resume")
    assert sharded.start_step() == 1
    sharded.close()


def test_a_model_whose_values_are_missing_is_not_left_behind(daemon):
    with torch.device("meta"):
        model = nn.Linear(4, 3)
    pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match="weight"):
        pt.AdamW(model.parameters())
    with daemon.client() as client:
        assert client.models() == []


def test_a_deletion_by_another_client_is_told_from_a_loss(start, tmp_path):
    """After a server is killed, the keeper's next one knows of the deletion."""
    daemon = start(flags=())
    script = Script(daemon, "m", "nothing", tmp_path)
    _, sharded, _ = script.open()
    spec = sharded._description.spec()
    sharded.close()
    with daemon.client() as client, daemon.client() as other:
        for kills in (False, True):
            with client.open_model(spec) as model:
                gradients = model.gradients(spec.units[0].name)
                for parameter in ("weight", "bias"):
                    gradients[parameter][...] = 1.0
                gradients.push()
                model.commit(learning_rate=0.5).wait()
            other.delete_model("m")
            if kills:
                os.kill(other.daemon_info().pid, 9)
            with pytest.raises(paramshard.AbortedError, match="deleted"):
                client.open_model(spec)


# --- Models that another client deletes ---


class Deserted:
    """Rank 0 of two. The other rank is gone, and with it the epoch."""

    def __init__(self, daemon):
        with pt.meta_init():
            self.model = nn.Linear(4, 3)
        self.sharded = pt.shard(self.model, name="m", units=[self.model], socket_dir=str(daemon.socket_dir))
        self.client = paramshard.Client(1, socket_dir=str(daemon.socket_dir))
        plan = OptimizerPlan([ParameterGroup("all", "adamw", True)], {"weight": 0, "bias": 0}, "FP32", "FP32",
                             [Matrices()])
        with ThreadPoolExecutor() as pool:
            first = pool.submit(self.sharded.open, plan)
            while not self.client.models():
                pass
            second = pool.submit(self.client.open_model, self.sharded._description.spec())
            first.result()
            self.second = second.result()

    def backward(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()

    def desert(self) -> None:
        self.second.close()
        with pytest.raises(paramshard.AbortedError):  # the backward needs no other rank, the commit does
            self.backward()
            self.sharded.model.commit(learning_rate=0.5).wait()

    def delete(self) -> None:
        self.client.delete_model("m")


@pytest.fixture
def deserted(start: Callable):
    made = Deserted(start(2))
    yield made
    made.client.close()


def _load(model: nn.Module) -> None:
    model.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.ones(3)})


def test_steps_of_a_deleted_model_are_aborted(deserted):
    deserted.desert()
    deserted.delete()
    for _ in range(2):
        with pytest.raises(paramshard.AbortedError):
            deserted.backward()
        with pytest.raises(paramshard.AbortedError):
            deserted.sharded.model.commit(learning_rate=0.5)
    assert deserted.client.models() == []


def test_loading_values_into_a_deleted_model_is_aborted(deserted):
    deserted.desert()
    deserted.delete()
    for _ in range(2):
        with pytest.raises(paramshard.AbortedError, match="model m was deleted"):
            _load(deserted.model)
    assert deserted.client.models() == []


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_deletion_while_values_are_loaded_is_not_waited_for(start, local_rank):
    daemon = start(2 if local_rank else 1)
    with pt.meta_init():
        model = nn.Linear(4, 3)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with daemon.client() as client:
        opening = sharded._opening()
        opening.create_or_join(sharded._description.spec(), ScriptValues(any=False, all=False, missing=None))
        opening._local_rank = local_rank
        known = opening.find()
        client.delete_model("m")
        with pytest.raises(paramshard.AbortedError):
            opening.replace_values(known.history_id, dict)
        assert client.models() == []


def test_a_rank_started_by_hand_is_soon_refused_over_values_that_were_imported_before(start, monkeypatch):
    """Rank 0 of the same job would attach at once after its import."""
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    daemon = start(2)
    model = nn.Linear(4, 3)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), local_rank=1)
    with daemon.client() as client:
        client.create_model(sharded._description.spec())
        client.import_tensors("m", to_import(sharded._values))
        began = time.monotonic()
        with pytest.raises(paramshard.AlreadyExistsError, match="imported"):
            sharded.open()
        assert time.monotonic() - began < 30
