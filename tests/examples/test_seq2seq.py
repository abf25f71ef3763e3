"""The Transformer of 2017: its layers by the formula, its loss and schedule, decoding, and that it learns."""

import itertools
import math
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from examples.seq2seq.__main__ import Lesson, share_right
from examples.seq2seq.decoding import beam_search, greedy
from examples.seq2seq.learning import noam_rate, pairs, smoothed_nats, train
from examples.seq2seq.model import BEGIN, END, PAD, Seen, Seq2Seq, causal
from tests.conftest import long_test
from txl.config import ModelConfig, UsageError
from txl.model.attention import Attention

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "seq2seq"
N_WORD, V = 3, 6


def small_config(**changes: Any) -> ModelConfig:
    sizes = {"n_token": V, "n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 12}
    return ModelConfig(**{**sizes, "position": "sinusoid_input", **changes})


def small_model(**changes: Any) -> Seq2Seq:
    model = Seq2Seq(small_config(**changes)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.5)
    return model


class Elsewhere(TorchDispatchMode):
    """Stands for a GPU with the meta device: no operation may have tensors of both, and every number asked for is 0."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        places = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        assert len(places) <= 1, f"{func}: tensors on {places}"
        if func is torch.ops.aten._local_scalar_dense.default and places == {"meta"}:
            return 0
        return func(*args, **(kwargs or {}))


def some_data() -> Iterator[tuple[Tensor, Tensor]]:
    return pairs("copy", n_word=N_WORD, batch_size=4, min_len=1, max_len=5, seed=0)


def some_pairs() -> tuple[Tensor, Tensor]:
    return next(some_data())


def begun(target_BT: Tensor) -> Tensor:
    return torch.cat([torch.full_like(target_BT[:, :1], BEGIN), target_BT[:, :-1]], dim=1)


def test_tasks_are_what_they_are_called() -> None:
    for task in ("copy", "reverse"):
        source_BS, target_BT = next(
            pairs(task, n_word=5, batch_size=50, min_len=1, max_len=6, seed=3)
        )
        lengths = set()
        for source, target in zip(source_BS.tolist(), target_BT.tolist(), strict=True):
            n = source.index(END)
            words = source[:n]
            assert all(3 <= word < 8 for word in words)
            assert source[n + 1 :] == [PAD] * (6 - n)
            assert target == (words if task == "copy" else words[::-1]) + [END] + [PAD] * (6 - n)
            lengths.add(n)
        assert lengths == set(range(1, 7))


def test_a_layer_is_the_formula() -> None:
    """Vaswani et al. 2017, sec. 3.1 to 3.3: one head at a time, one query at a time."""
    model = small_model(n_layer=1)
    layer = model.decoder[0]
    x_TD, source_SD = torch.randn(4, 8).double(), torch.randn(6, 8).double()

    def attention(attn: Attention, query_D: Tensor, keys: Tensor) -> Tensor:
        heads = []
        for n in range(2):
            W_q, W_k, W_v = (
                net.weight[4 * n : 4 * n + 4] for net in (attn.q_net, attn.k_net, attn.v_net)
            )
            weights = torch.stack([(W_q @ query_D) @ (W_k @ key) / 4**0.5 for key in keys]).softmax(
                0
            )
            heads.append(sum(w * (W_v @ key) for w, key in zip(weights, keys, strict=True)))
        return attn.o_net.weight @ torch.cat(heads)

    everything = Seen(torch.ones(1, 6, dtype=torch.bool))
    ours = layer(x_TD[None], source_SD[None], Seen(causal(4, x_TD.device)), everything)[0]
    after = torch.stack(
        [layer.attn_norm(x + attention(layer.attn, x, x_TD[: t + 1])) for t, x in enumerate(x_TD)]
    )
    for t, x in enumerate(after):
        x = layer.cross_norm(x + attention(layer.cross, x, source_SD))
        inner = (layer.ff[0].weight @ x + layer.ff[0].bias).clamp(min=0)
        x = layer.ff_norm(x + layer.ff[3].weight @ inner + layer.ff[3].bias)
        torch.testing.assert_close(ours[t], x)


def test_padding_changes_nothing() -> None:
    model, (source_BS, target_BT) = small_model(), some_pairs()
    together = model(source_BS, begun(target_BT))
    for row, (source_S, target_T) in enumerate(zip(source_BS, target_BT, strict=True)):
        n = int((source_S != PAD).sum())
        alone = model(source_S[None, :n], begun(target_T[None, :n]))
        torch.testing.assert_close(together[row, :n], alone[0])


def test_a_target_word_depends_on_the_words_before_it_and_on_the_whole_source() -> None:
    model = small_model()
    source_BS, target_BT = torch.randint(3, V, (1, 5)), torch.randint(3, V, (1, 5))
    base = model(source_BS, target_BT)
    for t in range(5):
        other_BT = target_BT.clone()
        other_BT[0, t] = 3 + (other_BT[0, t] - 2) % 3
        moved = (model(source_BS, other_BT) - base).abs().amax(-1)[0] > 1e-9
        assert moved.tolist() == [s >= t for s in range(5)]
        other_BS = source_BS.clone()
        other_BS[0, t] = 3 + (other_BS[0, t] - 2) % 3
        assert ((model(other_BS, target_BT) - base).abs().amax(-1) > 1e-9).all()


def test_smoothed_loss_is_the_cross_entropy_with_the_smoothed_target() -> None:
    logprob_BTV = torch.randn(2, 3, V).double().log_softmax(-1)
    target_BT = torch.tensor([[3, 4, END], [5, END, PAD]])
    total = 0.0
    for b, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        wanted = [0.1 / V + 0.9 * (word == int(target_BT[b, t])) for word in range(V)]
        total -= sum(q * float(logprob_BTV[b, t, word]) for word, q in enumerate(wanted))
    assert float(smoothed_nats(logprob_BTV, target_BT, smoothing=0.1)) == pytest.approx(
        total / 5, abs=1e-12
    )


def test_the_rate_rises_linearly_and_falls_with_the_root() -> None:
    rates = [noam_rate(n, d_model=512, warmup_step=4000) for n in (1, 2000, 4000, 16000)]
    assert rates == pytest.approx(
        [512**-0.5 * r for r in (4000**-1.5, 2000 * 4000**-1.5, 4000**-0.5, 16000**-0.5)]
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_wide_enough_finds_the_best_of_all_sentences(alpha: float) -> None:
    model = small_model()
    source_BS, found = torch.tensor([[3, 4, END], [5, 5, END]]), []
    words = range(3, V)
    ended = [(*s, END) for n in range(3) for s in itertools.product(words, repeat=n)]
    sentences = [*ended, *itertools.product(words, repeat=3)]
    for source_S in source_BS:
        scores = {}
        for sentence in sentences:
            target_T = torch.tensor([sentence])
            logprob_TV = model(source_S[None], begun(target_T))[0].detach()
            total = float(logprob_TV.gather(-1, target_T[0, :, None]).sum())
            scores[sentence] = total / ((5 + len(sentence)) / 6) ** alpha
        found.append(max(scores.items(), key=lambda item: item[1]))
    token_BT, score_B = beam_search(model, source_BS, max_len=3, width=64, alpha=alpha)
    for (sentence, score), token_T, ours in zip(
        found, token_BT.tolist(), score_B.tolist(), strict=True
    ):
        assert [t for t in token_T if t != PAD] == list(sentence)
        assert math.isclose(ours, score, abs_tol=1e-9)


class Erratic:
    """Stands for a model whose next word depends on every word before it."""

    def encode(self, source_BS: Tensor) -> Tensor:
        return source_BS.double().mul(5 ** torch.arange(source_BS.shape[1])).sum(1)[:, None, None]

    def decode(self, token_BT: Tensor, encoded_BSD: Tensor, _: Tensor) -> Tensor:
        read_BT = token_BT.double().mul(3 ** torch.arange(token_BT.shape[1])).cumsum(1)
        return (
            (read_BT[..., None] + encoded_BSD)
            .mul(torch.arange(1, 1 + V))
            .sin()
            .mul(2)
            .log_softmax(-1)
        )


@pytest.mark.parametrize("width", [2, 3])
def test_a_narrow_beam_keeps_the_best_by_score(width: int) -> None:
    """A plain loop over hypotheses: (tokens, log-probability), ranked by log-probability over length penalty."""
    model, alpha, allowed = (
        cast("Seq2Seq", Erratic()),
        1.0,
        [word for word in range(V) if word not in {PAD, BEGIN}],
    )
    source_BS = torch.tensor([[*words, END] for words in itertools.product(range(3, V), repeat=3)])
    token_BT, score_B = beam_search(model, source_BS, max_len=4, width=width, alpha=alpha)

    def score(one: tuple[list[int], float]) -> float:
        return one[1] / ((5 + len(one[0])) / 6) ** alpha

    for b, source_S in enumerate(source_BS):
        beam: list[tuple[list[int], float]] = [([], 0.0)]
        for _ in range(4):
            more = [one for one in beam if END in one[0]]
            for tokens, total in (one for one in beam if END not in one[0]):
                logprob_BTV = model.decode(
                    torch.tensor([[BEGIN, *tokens]]), model.encode(source_S[None]), source_S
                )
                more += [
                    ([*tokens, word], total + float(logprob_BTV[0, -1, word])) for word in allowed
                ]
            beam = sorted(more, key=score, reverse=True)[:width]
        assert [token for token in token_BT[b].tolist() if token != PAD] == beam[0][0]
        assert math.isclose(float(score_B[b]), score(beam[0]), abs_tol=1e-9)


def test_decoding_and_training_happen_where_the_model_is() -> None:
    model, source_BS = small_model().to("meta"), some_pairs()[0]
    for source in (source_BS.to("meta"), source_BS):
        with Elsewhere():
            token_BT = greedy(model, source, max_len=3)
            found_BT, score_B = beam_search(model, source, max_len=3, width=2)
        assert {x.device.type for x in (token_BT, found_BT, score_B)} == {"meta"}
        assert token_BT.shape == found_BT.shape == (4, 3)
    with Elsewhere():
        assert list(train(model, some_data(), n_update=2, warmup_step=1)) == [0, 0]


REFUSED: dict[str, Any] = {
    "attention": "performer",
    "recurrence": "same",
    "position": "rel_sinusoid",
}
REFUSED |= {"pre_lnorm": True, "n_position": 9, "count_back": True}


def test_what_is_not_of_this_model_is_refused() -> None:
    for name, value in REFUSED.items():
        why = rf"^{name}={value!r}: .* built with {name}=\S+ only; say so in its ModelConfig$"
        with pytest.raises(UsageError, match=why):
            Seq2Seq(small_config(**{name: value}))
    with pytest.raises(UsageError, match="width 0: must be at least 1"):
        beam_search(small_model(), some_pairs()[0], max_len=3, width=0)
    with pytest.raises(UsageError, match="task 'sort': there are copy and reverse"):
        next(pairs("sort", n_word=5, batch_size=2, min_len=1, max_len=6, seed=3))
    for name, size in {
        "n_word": 10**9,
        "max_len": 10**6,
        "width": 10**9,
        "warmup_step": 10**400,
    }.items():
        with pytest.raises(UsageError, match=f"--{name} .*(GiB|2\\^31)"):
            Lesson(**{name: size})


CHOICES = [
    {"activation": "swiglu"},
    {"d_embed": 4},
    {"not_tied": True},
    {"cutoffs": (4,), "div_val": 2},
]


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_settings_that_are_heard_give_a_model_that_learns_and_decodes(
    changes: dict[str, Any],
) -> None:
    model, (source_BS, target_BT) = small_model(**changes), some_pairs()
    assert sum(p.numel() for p in model.parameters()) != sum(
        p.numel() for p in small_model().parameters()
    )
    logprob_BTV = model(source_BS, begun(target_BT))
    torch.testing.assert_close(logprob_BTV.logsumexp(-1), torch.zeros_like(logprob_BTV[..., 0]))
    smoothed_nats(logprob_BTV, target_BT, smoothing=0.1).backward()
    assert all(p.grad is not None for p in model.parameters())
    one = greedy(model, source_BS, max_len=4)
    assert torch.equal(one, beam_search(model, source_BS, max_len=4, width=1)[0])
    assert not ((one == BEGIN) | ((one == PAD) & (one.cumsum(1) == 0))).any()


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `python -m examples.seq2seq` in this process; its exit status, and what it prints to stdout and stderr."""

    def call(flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["__main__.py", *flags.split()])
        # imported above, and run anew
        monkeypatch.delitem(sys.modules, "examples.seq2seq.__main__", raising=False)
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("examples.seq2seq", run_name="__main__")
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


def test_the_program_trains_and_shows_what_it_has_learnt(call: Call) -> None:
    status, out, err = call("--n_word 2 --max_len 1 --n_update 60")
    assert (status, err) == (0, "")
    update, *shares, first, second, third = out.splitlines()
    nats = float(re.fullmatch(r"\| update    60 \| loss (\d\.\d{3}) nats", update)[1])
    assert 0.2 < nats < math.log(5)  # what smoothing leaves, and what knows nothing
    for name, share in zip(("greedy", "beam"), shares, strict=True):
        assert re.fullmatch(rf"\| {name}: 100\.0% of 64 sequences right", share)
    for line in (first, second, third):
        assert re.fullmatch(r"  ([01])  ->  \1", line)


def test_the_example_of_the_readme_runs() -> None:
    (example,) = re.findall(
        r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(), flags=re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(example, names)
    assert len(names["token_BT"]) == len(names["score_B"]) == 2


COMPLAINTS = {
    "--taks copy": "--taks: no such flag; did you mean --task?",
    "--task sort": "--task: invalid choice: 'sort'",
    "--n_update many": "--n_update: invalid int value",
    **{
        f"--{name} 0": f"--{name} 0: must be at least 1"
        for name in "n_word max_len n_update width warmup_step".split()
    },
    "--smoothing nan": "--smoothing nan: must be at least 0 and below 1",
    "--seed -1": "--seed -1: must be at least 0 and below 2^32",
}


def test_bad_input_is_one_line_and_status_2(call: Call) -> None:
    for flags, complaint in COMPLAINTS.items():
        status, out, err = call(flags)
        assert (status, out) == (2, "")
        assert err.startswith(f"python -m examples.seq2seq: {complaint}")
        assert len(err.splitlines()) == 1


@long_test
def test_it_learns_to_reverse() -> None:
    task = "reverse"
    sizes = {"n_word": 5, "batch_size": 64, "min_len": 1, "max_len": 4}
    model = Seq2Seq(small_config(n_token=8, n_head=4, d_head=8, d_model=32, d_inner=64))
    untrained = shares_right(model, task, sizes)
    losses = list(train(model, pairs(task, seed=5, **sizes), n_update=350, warmup_step=100))
    assert losses[-1] < losses[0]
    assert max(untrained) < 0.1
    assert min(shares_right(model, task, sizes)) > 0.95


def shares_right(model: Seq2Seq, task: str, sizes: dict[str, int]) -> tuple[float, float]:
    """By greedy decoding and by the beam, of sequences that are not those of the training."""
    source_BS, target_BT = next(pairs(task, seed=6, **sizes))
    model.eval()
    found = greedy(model, source_BS, max_len=5), beam_search(model, source_BS, max_len=5)[0]
    return tuple(share_right(found_BT, target_BT) for found_BT in found)
