"""Several ranks, each a thread with a model of its own, against one torch model that has all their batches."""

import logging
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, assert_close, batch_of, loss_of

TIMEOUT = 100.0


def run_ranks(ranks: int, work: Callable[[int], None]) -> None:
    """Calls `work` for every rank at the same time, and raises the error of the first rank that failed."""
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            if DEVICE == "cuda":
                torch.cuda.set_device(rank)
            work(rank)
        except BaseException as error:
            errors.append((rank, error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0][1]


def _models(ranks: int, **options) -> list[GPT]:
    models = []
    for _ in range(ranks):
        torch.manual_seed(0)
        models.append(GPT(**options))
    return models


def _shard(daemon, model: nn.Module, rank: int, name: str = "m", **options) -> pt.ShardedModel:
    return pt.shard(model, name=name, units=model.units(), socket_dir=str(daemon.socket_dir), local_rank=rank,
                    **options)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_as_one(start, ranks):
    daemon = start(ranks=ranks)
    plain, *models = _models(1 + ranks, tied=True)
    plain.to(DEVICE)
    # Gradients that nearly cancel out are rounding, which Adam with a small epsilon makes as large as any other.
    epsilon = 1e-3
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-3, eps=epsilon)
    for step in range(10):
        for rank in range(ranks):
            (loss_of(plain, batch_of(10 * step + rank)) / ranks).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        adamw.step()
        adamw.zero_grad()

    def train(rank: int) -> None:
        model = models[rank]
        with _shard(daemon, model, rank) as sharded:
            optimizer = pt.AdamW(model.parameters(), lr=1e-3, eps=epsilon, max_grad_norm=0.5)
            assert (sharded.rank, sharded.world_size) == (rank, ranks)
            for step in range(10):
                loss_of(model, batch_of(10 * step + rank)).backward()
                optimizer.step()
                optimizer.zero_grad()
            # Any rank reads whole parameters, without the others.
            if rank == ranks - 1:
                for name, parameter in plain.named_parameters():
                    assert_close(sharded.read(name), parameter.detach(), rtol=0, atol=1e-6)

    run_ranks(ranks, train)


def _fail(model: GPT, tokens: torch.Tensor) -> None:
    """A backward that some units have been through, and pushed."""
    def refuse(_: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    handle = model.layers[1].register_forward_hook(lambda module, args, output: output.register_hook(refuse) and None)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_of(model, tokens).backward()
    handle.remove()


def test_what_all_ranks_drop_is_in_no_step(start):
    """A failed backward, gradients without a step, and evaluations change nothing."""
    daemon = start(ranks=2)
    *models, expected_a, expected_b = _models(4)
    masters = {}

    def train(name: str, pair: list[GPT], disturbs: bool) -> Callable[[int], None]:
        def run(rank: int) -> None:
            model = pair[rank]
            with _shard(daemon, model, rank, name) as sharded:
                optimizer = pt.AdamW(model.parameters())
                for step in range(3):
                    if disturbs:
                        _fail(model, batch_of(100 + step))
                        optimizer.zero_grad()
                        loss_of(model, batch_of(200 + rank)).backward()
                        optimizer.zero_grad()
                        model.eval()
                        with torch.no_grad():
                            model(batch_of(300))
                        model.train()
                    loss_of(model, batch_of(2 * step + rank)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if rank == 1:
                    masters[name] = model.state_dict()
        return run

    run_ranks(2, train("plain", [expected_a, expected_b], disturbs=False))
    run_ranks(2, train("disturbed", models, disturbs=True))
    for name, value in masters["plain"].items():
        assert torch.equal(masters["disturbed"][name], value), name


def test_a_distributed_checkpoint_of_one_rank_is_loaded_by_all(start, tmp_path):
    import torch.distributed.checkpoint as dcp
    daemon = start(ranks=2)
    saving, loading = _models(2), _models(2)
    values = {}

    def save(rank: int) -> None:
        with _shard(daemon, saving[rank], rank, "saved"):
            optimizer = pt.AdamW(saving[rank].parameters())
            loss_of(saving[rank], batch_of(rank)).backward()
            optimizer.step()
            if rank == 0:
                values.update(saving[rank].state_dict())
                dcp.save({"model": values}, checkpoint_id=tmp_path, no_dist=True)

    def load(rank: int) -> None:
        with _shard(daemon, loading[rank], rank, "loaded"):
            pt.AdamW(loading[rank].parameters())
            state = {"model": loading[rank].state_dict()}
            dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
            loading[rank].load_state_dict(state["model"])
            assert_close(loading[rank].state_dict(), values, rtol=0, atol=0)

    run_ranks(2, save)
    run_ranks(2, load)


def test_ranks_generate_unequal_lengths(start):
    """A rank that is done closes its model, and the other goes on."""
    daemon = start(ranks=2)
    models = _models(2)

    def generate(rank: int) -> None:
        with _shard(daemon, models[rank], rank) as sharded, torch.no_grad():
            sharded.open()
            for _ in range(1 + 3 * rank):
                models[rank](batch_of(0))
            if DEVICE == "cuda":  # where the stream waits and not the host, which is to ask
                torch.cuda.synchronize()
                sharded.model.check()

    run_ranks(2, generate)


def test_values_that_are_loaded_reach_all_ranks(start):
    daemon = start(ranks=2)
    torch.manual_seed(9)
    values = GPT().state_dict()
    models = _models(2)

    def train(rank: int) -> None:
        model = models[rank]
        with _shard(daemon, model, rank):
            optimizer = pt.AdamW(model.parameters())
            loss_of(model, batch_of(rank)).backward()
            optimizer.step()
            model.load_state_dict(values)
            if rank == 1:
                assert_close(model.state_dict(), values, rtol=0, atol=0)
            loss_of(model, batch_of(rank)).backward()
            optimizer.step()
            assert optimizer.last_result().commit_number == 2

    run_ranks(2, train)


def test_a_save_before_schedulers_step_does_not_wait_for_them(start, tmp_path):
    daemon = start(ranks=2)
    models = _models(2)
    barrier = threading.Barrier(2, timeout=TIMEOUT / 2)

    def train(rank: int) -> None:
        with _shard(daemon, models[rank], rank) as sharded:
            optimizer = pt.AdamW(models[rank].parameters())
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            sharded.track(scheduler=scheduler)
            loss_of(models[rank], batch_of(rank)).backward()
            optimizer.step()
            sharded.save_pretrained(tmp_path)
            barrier.wait()
            scheduler.step()

    run_ranks(2, train)
    assert (tmp_path / "model.safetensors").exists()


def test_rerun_same_script_errors(start):
    daemon = start(ranks=2)

    def train(existing: str, models: list[GPT], begins: int) -> Callable[[int], None]:
        def run(rank: int) -> None:
            with _shard(daemon, models[rank], rank, existing=existing) as sharded:
                optimizer = pt.AdamW(models[rank].parameters())
                assert sharded.start_step() == begins
                loss_of(models[rank], batch_of(rank)).backward()
                optimizer.step()
        return run

    run_ranks(2, train("error", _models(2), begins=0))
    with pytest.raises(paramshard.AlreadyExistsError, match='at commit 1: existing="resume"'):
        run_ranks(2, train("error", _models(2), begins=0))
    run_ranks(2, train("resume", _models(2), begins=1))
    run_ranks(2, train("fresh", _models(2), begins=0))


@pytest.mark.parametrize("imports", [False, True], ids=["by rules", "with values"])
def test_a_fresh_model_has_nothing_of_one_that_made_no_step(start, imports):
    daemon = start(ranks=2)
    torch.manual_seed(9)
    values = GPT().state_dict()
    first, second = _models(2), _models(2)
    if not imports:
        with pt.meta_init():
            second = _models(2)

    def begin(models: list[GPT], moments: str) -> Callable[[int], None]:
        def run(rank: int) -> None:
            with _shard(daemon, models[rank], rank, existing="fresh") as sharded:
                pt.AdamW(models[rank].parameters(), moments=moments)
                if models is first:
                    models[rank].load_state_dict(values)
                else:
                    assert not torch.equal(sharded.read("head.weight"), values["head.weight"])
        return run

    run_ranks(2, begin(first, "FP32"))
    run_ranks(2, begin(second, "BF16"))


def _in_meta_init() -> GPT:
    with pt.meta_init():
        return GPT()


def _on_meta() -> GPT:
    with torch.device("meta"):
        return GPT()


@pytest.mark.parametrize("make", [_in_meta_init, _on_meta])
def test_the_first_rank_may_bring_the_values_alone(start, make):
    daemon = start(ranks=2)
    first = GPT()
    values = {name: value.detach().clone() for name, value in first.named_parameters()}
    models = [first, make()]
    if make is _on_meta:
        models[1]._buffers.update({name: buffer.clone() for name, buffer in first._buffers.items()})
    read = []

    def run(rank: int) -> None:
        with _shard(daemon, models[rank], rank) as sharded:
            pt.AdamW(models[rank].parameters())
            read.append({name: sharded.read(name) for name in values})

    run_ranks(2, run)
    for each in read:
        for name, value in values.items():
            assert torch.equal(each[name], value.cpu()), name


def test_values_of_another_rank_than_the_first_are_refused(start):
    daemon = start(ranks=2)
    models = [_in_meta_init(), GPT()]
    errors = {}

    def run(rank: int) -> None:
        _shard(daemon, models[rank], rank)
        try:
            pt.AdamW(models[rank].parameters())
        except paramshard.Error as error:
            errors[rank] = error

    ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for each in ranks:
        each.start()
    ranks[1].join(TIMEOUT)
    assert not ranks[1].is_alive()
    assert isinstance(errors[1], paramshard.FailedPreconditionError)
    assert "rank 0" in str(errors[1])


def test_the_seed_is_that_of_the_first_rank(start):
    daemon = start(ranks=2)
    models = [_in_meta_init() for _ in range(2)]
    sharded = []
    for rank, model in enumerate(models):
        torch.manual_seed(rank)
        sharded.append(_shard(daemon, model, rank))
    seeds = [each._description.spec().seed for each in sharded]
    assert seeds[0] != seeds[1]
    read = {}

    def run(rank: int) -> None:
        with sharded[rank]:
            pt.AdamW(models[rank].parameters())
            read[rank] = sharded[rank].read("head.weight")

    run_ranks(2, run)
    assert torch.equal(read[0], read[1])
    again = [_in_meta_init() for _ in range(2)]

    def begin_again(rank: int) -> None:
        with _shard(daemon, again[rank], rank, existing="fresh", seed=seeds[0]) as begun:
            pt.AdamW(again[rank].parameters())
            assert torch.equal(begun.read("head.weight"), read[0])

    run_ranks(2, begin_again)


def test_a_rank_that_waits_says_so(start, monkeypatch):
    monkeypatch.setattr("paramshard.torch.opening._LOG_AFTER", 0.05)
    daemon = start(ranks=2)
    models = [_in_meta_init() for _ in range(2)]
    told = threading.Event()

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting" in record.getMessage() and ("1 of 2" in record.getMessage() or "rank 0" in record.getMessage()):
                told.set()

    hears = Hears()
    logging.getLogger("paramshard").addHandler(hears)

    def run(rank: int) -> None:
        with _shard(daemon, models[rank], rank):
            if rank == late:
                assert told.wait(TIMEOUT)
                told.clear()
            pt.AdamW(models[rank].parameters())

    try:
        for late in range(2):
            run_ranks(2, run)
            models = [_in_meta_init() for _ in range(2)]
            with daemon.client() as client:
                client.delete_model("m")
    finally:
        logging.getLogger("paramshard").removeHandler(hears)


class Numbers(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return batch_of(index, size=1, device="cpu")[0]


def test_workers_of_a_data_loader_end_as_they_like(daemon):
    """They are forked with the model in them, and drop it."""
    model, = _models(1)
    with _shard(daemon, model, 0) as sharded:
        optimizer = pt.AdamW(model.parameters())
        for _ in range(2):
            for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
                loss_of(model, batch.to(DEVICE)).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert optimizer.last_result().commit_number == 6
        assert sharded.model.commit_number == 0
