"""A whole distillation of a tiny target on a CPU: loss falls, acceptance rises, interruptions change nothing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_toys import DRAFT_SHAPE, FORMAT, LANGUAGE, toy_directory, toy_target

from paceline import LLM
from paceline.distill.engine_decoder import EngineDecoder
from paceline.distill.folder import RunFolder
from paceline.distill.losses import LossTerm, parse_loss
from paceline.distill.recipe import DistillRecipe, OptimizerChoice, TextRecipe
from paceline.distill.replay import Batch
from paceline.distill.rollout import ASSISTANT, USER, BatchDecoder, CacheMemory
from paceline.distill.run import Distillation, Outcome
from paceline.distill.student import draft_from_target, principal_axes
from paceline.distill.teacher import Teacher
from paceline.distill.text import TextStore
from paceline.distill.train import Trainer, learning_rate_factor
from paceline.distill.user_text import UserText
from paceline.distill.writer import Writer, scripts_of
from paceline.errors import ConfigurationError

TEXT = TextRecipe(rows=64, length=32, selected=24, held_out=16, greedy_share=0.5, buffer_bytes=1 << 20)
RECIPE = DistillRecipe(
    text=TEXT,
    tokens=160 * 32 * 21,
    batch=32,
    candidates=(OptimizerChoice("adamw", 1e-4, 1e-4), OptimizerChoice("muon", 2e-2, 2e-2)),
    candidate_steps=12,
    final_losses=(parse_loss("forward-kl"), parse_loss("forward-kl*0.25+tv@0.6")),
    looks=4,
    head_chunk=500,
)


class Notes:
    """Keeps events; stops the run, as Ctrl-C would, when `stop` says so."""

    def __init__(self, stop: Any = lambda phase, done: False) -> None:
        self.events: list[dict[str, Any]] = []
        self.stop = stop

    def note(self, event: str, **values: Any) -> None:
        self.events.append({"event": event} | values)

    def advance(self, phase: str, done: int, total: int, **values: Any) -> None:
        if self.stop(phase, done):
            raise KeyboardInterrupt


def teacher() -> Teacher:
    return Teacher.of_dense(toy_target(), {})


def batch_writer(folder: Path, recipe: TextRecipe) -> Writer:
    """A writer with the dense decoder."""
    target = toy_target()
    memory = CacheMemory(target, recipe.rows * recipe.length)
    decoders = [
        BatchDecoder(target, FORMAT, scripts_of(LANGUAGE), memory, rows=rows, length=length, user_temperature=0.85)
        for rows, length in ((recipe.rows, recipe.length), (recipe.long_rows, recipe.long_length))
    ]
    return Writer(teacher(), *decoders, LANGUAGE, recipe, TextStore(folder), seed=1)


def test_loss_falls_acceptance_rises_and_the_best_choices_are_kept(tmp_path: Path) -> None:
    notes, folder = Notes(), RunFolder(tmp_path)
    folder.state.mkdir()
    ticks = itertools.count()
    outcome = Distillation(
        teacher(), batch_writer(folder.text, TEXT), DRAFT_SHAPE, RECIPE, folder, notes,
        clock=lambda: float(next(ticks)),
    ).run()  # fmt: skip
    before, after = outcome.before["chat"], outcome.after["chat"]
    assert after["forward_kl"] < 0.6 * before["forward_kl"]
    assert after["agreement"] > before["agreement"] + 0.1
    assert after["accepted_at_0.7"] > before["accepted_at_0.7"] + 0.1
    assert after["tokens_per_pass"] > before["tokens_per_pass"]
    looks = [e["held_out"]["chat"]["forward_kl"] for e in notes.events if e["event"] == "look" and not e.get("branch")]
    assert looks[-1] < looks[1] < looks[0]
    assert outcome.choice.matrices == "muon"
    branches = [e for e in notes.events if e["event"] == "branch"]
    scores = [sum(kind["tokens_per_pass"] for kind in e["held_out"].values()) for e in branches]
    assert len(scores) == 2
    assert outcome.loss == branches[scores.index(max(scores))]["loss"]
    assert outcome.steps == RECIPE.steps_for(RECIPE.tokens or 0)


def test_minutes_are_measured_at_the_start_and_a_full_disk_is_noticed_then(tmp_path: Path) -> None:
    recipe = DistillRecipe(text=TEXT, minutes=0.5, batch=32, head_chunk=500)  # 30 looks at this clock
    notes, folder = Notes(stop=lambda phase, done: phase == "learning"), RunFolder(tmp_path)
    folder.state.mkdir()
    seen: list[int] = []

    def distillation(check: Any) -> Distillation:
        ticks = itertools.count()
        return Distillation(
            teacher(), batch_writer(folder.text, TEXT), DRAFT_SHAPE, recipe, folder, notes,
            clock=lambda: float(next(ticks)), check_steps=check,
        )  # fmt: skip

    def full(steps: int) -> None:
        raise ConfigurationError("Make room.")

    with pytest.raises(ConfigurationError, match="Make room"):
        distillation(full).run()
    with pytest.raises(KeyboardInterrupt):
        distillation(seen.append).run()
    (estimate,) = [e for e in notes.events if e["event"] == "estimate"]
    assert seen == [estimate["steps"]]
    assert estimate["seconds_per_step"] == 0.5
    assert 20 <= estimate["steps"] <= 60
    assert estimate["seconds"] <= 30


SHORT = DistillRecipe(
    text=TextRecipe(rows=12, length=32, selected=20, held_out=4, buffer_bytes=1 << 15, data_mix=0.4),
    tokens=60 * 20 * 5,
    reuse=3.5,
    batch=8,
    final_losses=(parse_loss("forward-kl"), parse_loss("tv@0.6")),
    looks=3,
    head_chunk=100,
)


def engine_run(folder: RunFolder, llm: LLM, notes: Notes) -> Outcome:
    """A short run that writes through Paceline's own engine, with a user's prompts in it."""
    folder.state.mkdir(exist_ok=True)
    recipe, scripts = SHORT.text, scripts_of(LANGUAGE)
    decoders = [
        EngineDecoder(llm, FORMAT, scripts, rows=rows, length=length, user_temperature=0.85, device=torch.device("cpu"))
        for rows, length in ((recipe.rows, recipe.length), (recipe.long_rows, recipe.long_length))
    ]
    beginnings = tuple(torch.tensor([*FORMAT.start, 3 + n, FORMAT.end, *FORMAT.to_assistant]).numpy() for n in range(9))
    writer = Writer(
        teacher(), *decoders, LANGUAGE, recipe, TextStore(folder.text), seed=1, user_text=UserText(beginnings)
    )
    ticks = itertools.count()
    return Distillation(
        teacher(), writer, DRAFT_SHAPE, SHORT, folder, notes, clock=lambda: float(next(ticks)), checkpoint_every=20
    ).run()


@pytest.fixture(scope="module")
def toy_llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = toy_directory(tmp_path_factory.mktemp("toy"))
    with LLM(model=str(path), dtype="float32", max_model_len=64, max_num_seqs=12) as llm:
        yield llm


@pytest.fixture(scope="module")
def uninterrupted(toy_llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[dict[str, Any]]]:
    notes = Notes()
    return engine_run(RunFolder(tmp_path_factory.mktemp("whole")), toy_llm, notes), notes.events


@pytest.mark.parametrize(
    "stop",
    [
        lambda phase, done: phase == "writing" and done == 1,  # before there is a checkpoint
        lambda phase, done: phase == "writing" and done > 30,
        lambda phase, done: phase == "learning" and done >= 44,  # after the fork
    ],
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    stop: Any, toy_llm: LLM, uninterrupted: tuple[Outcome, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        engine_run(folder, toy_llm, Notes(stop))
    outcome = engine_run(folder, toy_llm, Notes())
    expected, _ = uninterrupted
    assert outcome.loss == expected.loss
    assert outcome.after == expected.after
    assert outcome.before == expected.before
    for (name, ours), theirs in zip(
        outcome.student.state_dict().items(), expected.student.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_buffers_that_were_passed_over_hold_what_they_held(
    toy_llm: LLM, uninterrupted: tuple[Outcome, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """The small buffers of SHORT lose their first rounds: catching up must not read those, and must end alike."""
    folder = RunFolder(tmp_path)
    engine_run(folder, toy_llm, Notes())
    reads: list[int] = []
    target = teacher()

    def counted(tokens: torch.Tensor) -> torch.Tensor:
        reads.append(len(tokens))
        return target.forward(tokens)

    def writer(forward: Any) -> Writer:
        watched = Teacher(path=None, config={}, head=target.head, forward=forward, max_positions=64)
        none: Any = None  # everything is in the store
        return Writer(watched, none, none, LANGUAGE, SHORT.text, TextStore(folder.text), seed=1)

    one_by_one, caught_up = writer(target.forward), writer(counted)
    rounds = SHORT.rounds_for(SHORT.steps_for(SHORT.tokens or 0))
    for _ in range(rounds):
        one_by_one.next_round()
    caught_up.catch_up(rounds)
    everything = sum(len(caught_up.store.load(n, target.device).tokens) for n in range(rounds))
    assert sum(reads) < everything
    for kind, buffer in one_by_one.buffers.items():
        other = caught_up.buffers[kind]
        draws = [b.draw(6, torch.Generator().manual_seed(3)) for b in (buffer, other)]
        assert torch.equal(draws[0].tokens, draws[1].tokens)
        assert torch.equal(draws[0].hidden, draws[1].hidden)
    assert torch.equal(one_by_one.answer_counts, caught_up.answer_counts)


def test_the_engine_writes_what_the_dense_decoder_would(toy_llm: LLM) -> None:
    """Greedy rows are the target's argmax, turns alternate, given beginnings stay; the same seed repeats."""
    decoder = EngineDecoder(
        toy_llm, FORMAT, scripts_of(LANGUAGE), rows=6, length=40, user_temperature=0.9, device=torch.device("cpu")
    )
    prefix = torch.tensor([[1, 5, 6, -1], [1, 5, 6, 9]] * 3)
    warmth = torch.tensor([0.0, 0.7] * 3)
    rollout = decoder.generate(prefix, warmth, seed=5, role=USER, open_turns=True)
    again = decoder.generate(prefix, warmth, seed=5, role=USER, open_turns=True)
    other = decoder.generate(prefix, warmth, seed=6, role=USER, open_turns=True)
    assert torch.equal(rollout.tokens, again.tokens)
    assert not torch.equal(rollout.tokens, other.tokens)
    target = toy_target()
    greedy = (target(rollout.tokens) @ target.table.T).argmax(-1)[:, :-1]
    answers = rollout.is_answer[:, 1:] & (warmth == 0).unsqueeze(1)
    assert answers.any()
    assert torch.equal(greedy[answers], rollout.tokens[:, 1:][answers])
    for given, tokens, flags in zip(prefix.tolist(), rollout.tokens.tolist(), rollout.is_answer.tolist(), strict=True):
        given = [token for token in given if token >= 0]
        assert tokens[: len(given)] == given
        closings = [at for at, token in enumerate(tokens) if token == FORMAT.end]
        assert [flags[at] for at in closings] == [bool(n % 2) for n in range(len(closings))]
        for number, at in enumerate(closings):
            markup = FORMAT.to_user if number % 2 else FORMAT.to_assistant
            room = tokens[at + 1 : at + 1 + len(markup)]
            assert tuple(room) == markup[: len(room)]
    answered = decoder.generate(prefix, warmth, seed=5, role=ASSISTANT, open_turns=False)
    assert answered.is_answer[1, 4]


def test_a_checkpoint_resumes_exactly() -> None:
    target = toy_target()
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        torch.randint(24, (4, 12), generator=generator),
        torch.arange(10).expand(4, -1),
        torch.randn(4, 10, 24, generator=generator),
        torch.ones(4, 10, dtype=torch.bool),
        torch.zeros(4),
    )
    terms = (LossTerm("forward_kl"),)
    first = Trainer(draft_from_target(target.table, DRAFT_SHAPE, seed=1), target.table, OptimizerChoice())
    first.step(batch, terms, 1.0)
    second = Trainer(draft_from_target(target.table, DRAFT_SHAPE, seed=2), target.table, OptimizerChoice())
    second.load_state_dict(first.state_dict())
    forked = first.fork()
    losses = [[t.step(batch, terms, 0.5).item() for _ in range(3)] for t in (first, second, forked)]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0][-1] < losses[0][0]
    assert second.steps == 4


def test_principal_axes_keep_the_inner_products_of_a_narrow_table() -> None:
    torch.manual_seed(0)
    table = torch.randn(40, 6) @ torch.randn(6, 24)  # of rank 6
    reduced = principal_axes(table, 6)
    products, kept = table @ table.T, reduced @ reduced.T
    torch.testing.assert_close(kept / kept.norm(), products / products.norm(), atol=1e-4, rtol=1e-3)


def test_schedule_warms_up_and_ends_at_zero() -> None:
    factors = [learning_rate_factor(i / 100, 0.05) for i in range(101)]
    assert factors[0] < 0.05
    assert max(factors) == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(0.0, abs=1e-9)
