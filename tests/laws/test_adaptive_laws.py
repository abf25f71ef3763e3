"""What must hold of words in and words out."""

from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from txl import Context, ModelConfig, TransformerXL
from txl.inference.words import WordProbabilities
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.ops.lookup import Room, shapes_for_any_ids
from txl.training.nats import smoothing

SIZES = {"n_token": 12, "n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 6, "d_inner": 4}


def softmax_of(**settings: object) -> AdaptiveSoftmax:
    config = ModelConfig(**SIZES | settings)
    softmax = AdaptiveSoftmax(config, AdaptiveEmbedding(config)).double()
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.normal_()
    return softmax


CUTS = {
    "no_cutoffs": {},
    "one_cutoff": {"cutoffs": (5,)},
    "one_word_clusters": {"cutoffs": (1, 2, 11)},
    "narrowing": {"cutoffs": (3, 7), "div_val": 2},
    "width_zero": {"cutoffs": (3, 7), "div_val": 4},
    "projected": {"cutoffs": (3, 7), "d_embed": 4},
    "projected_no_cutoffs": {"d_embed": 4},
    "narrowing_no_cutoffs": {"div_val": 2},
}


@pytest.mark.parametrize("cut", sorted(CUTS))
def test_nats_are_those_of_the_full_distribution_in_token_order(cut: str) -> None:
    softmax = softmax_of(**CUTS[cut])
    hidden, target_BT = (
        torch.randn(3, 12, 6).double(),
        torch.stack([torch.randperm(12) for _ in range(3)]),
    )
    full = -softmax.log_prob(hidden).gather(-1, target_BT[..., None]).squeeze(-1)
    torch.testing.assert_close(softmax.nll(hidden, target_BT), full)
    torch.testing.assert_close(softmax.nll(hidden, target_BT.int()), full)


@pytest.mark.parametrize("cut", sorted(CUTS))
def test_smoothing_is_the_cross_entropy_with_a_smoothed_target_in_each_softmax_on_the_way(
    cut: str,
) -> None:
    softmax = softmax_of(**CUTS[cut])
    hidden_LD, target_L = torch.randn(12, 6).double().requires_grad_(), torch.randperm(12)
    smoothed_L = softmax.nll(hidden_LD, target_L) + 0.1 * smoothing(softmax, hidden_LD, target_L)
    expected = []
    for hidden_D, word in zip(hidden_LD, target_L.tolist(), strict=True):
        head_C = torch.cat(WordProbabilities(softmax).head(hidden_D))
        cluster = sum(word >= sum(softmax.sizes[: i + 1]) for i in range(softmax.n_tail))
        columns = [(head_C, word if cluster == 0 else softmax.sizes[0] + cluster - 1)]
        if cluster:
            columns.append(
                (
                    WordProbabilities(softmax).tail(hidden_D, cluster - 1),
                    word - sum(softmax.sizes[:cluster]),
                )
            )
        expected.append(
            sum(-0.9 * logp_C[right] - 0.1 * logp_C.mean() for logp_C, right in columns)
        )
    torch.testing.assert_close(smoothed_L, torch.stack(expected))
    wanted = [hidden_LD, *softmax.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    grads = [
        torch.autograd.grad(loss, wanted, **options) for loss in (smoothed_L.sum(), sum(expected))
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("cut", sorted(CUTS))
def test_a_tied_table_gets_both_gradients(cut: str) -> None:
    """Looked up and multiplied, also where a word occurs twice, and where the softmax is not asked."""
    config = ModelConfig(**SIZES | CUTS[cut])
    embedding = AdaptiveEmbedding(config)
    softmax = AdaptiveSoftmax(config, embedding).double()
    embedding.double()
    token_BT, target_BT = (
        torch.tensor([[0, 5, 5], [11, 5, 0]]),
        torch.tensor([[5, 11, 0], [1, 5, 7]]),
    )
    weight_BTD = torch.randn(2, 3, 6).double()
    wanted = list(dict.fromkeys([*embedding.parameters(), *softmax.parameters()]))

    def gradients(hidden_BTD: Tensor, *tables: list[Tensor]) -> list[Tensor]:
        loss = softmax.nll(hidden_BTD, target_BT, *tables).sum() + (hidden_BTD * weight_BTD).sum()
        return torch.autograd.grad(loss, wanted, allow_unused=True)

    tables: list[Tensor] = []
    torch.testing.assert_close(
        gradients(embedding(token_BT, tables), tables), gradients(embedding(token_BT))
    )
    rows_BTD = embedding(token_BT, [])
    words = [embedding(word_1[None, None])[0, 0] for word_1 in token_BT.flatten()]
    torch.testing.assert_close(rows_BTD, torch.stack(words).view(2, 3, 6))  # beside others as alone
    alone = torch.autograd.grad((rows_BTD * weight_BTD).sum(), list(embedding.parameters()))
    expected = torch.autograd.grad(
        (embedding(token_BT) * weight_BTD).sum(), list(embedding.parameters())
    )
    torch.testing.assert_close(alone, expected)


def test_a_tied_table_has_one_gradient_on_any_device() -> None:
    """On one without values: the table is looked at once, not twice."""
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    with torch.device("meta"):
        model = TransformerXL(ModelConfig(**SIZES | {"cutoffs": (3, 7)}))
        ids = torch.empty(2, 5, dtype=torch.int64)
    with shapes_for_any_ids(Room((3, 4, 5), (8, 4, 3))), Made():
        model.nll(ids, ids, None, Context())[0].sum().backward()
    assert torch.ops.aten.embedding_dense_backward not in made
    assert torch.ops.aten.index_add_ in made


TEXTS = {
    "mixed": [0, 5, 11, 4, 0, 8, 8, 2, 1, 10],
    "shortlist": [0, 1, 2, 0, 1, 2, 0, 0, 1, 1],
    "rare words": [11, 10, 11, 7, 7, 9, 8, 11, 10, 10],
    "middle": [3, 4, 5, 6, 3, 3, 4, 6, 5, 3],
}


def counts(ids: list[int], sizes: Sequence[int]) -> list[int]:
    ends = list(accumulate(sizes))
    return [
        sum(end - size <= word < end for word in ids) for end, size in zip(ends, sizes, strict=True)
    ]


@pytest.mark.parametrize("not_tied", [False, True])
@pytest.mark.parametrize("cut", sorted(CUTS))
def test_words_in_a_room_of_their_clusters_give_the_same_values_and_gradients(
    cut: str, not_tied: bool
) -> None:
    """In room for exactly as many, for a few more, and for all in each cluster."""
    config = ModelConfig(**SIZES | CUTS[cut], not_tied=not_tied)
    embedding = AdaptiveEmbedding(config).double()
    softmax = AdaptiveSoftmax(config, embedding).double()
    wanted = list(dict.fromkeys([*embedding.parameters(), *softmax.parameters()]))
    weight_BT = torch.randn(2, 5).double()

    def results(ids: list[int], targets: list[int]) -> list[Tensor]:
        hidden_BTD = embedding(torch.tensor(ids).view(2, 5)).tanh()
        nll_BT = softmax.nll(hidden_BTD, torch.tensor(targets).view(2, 5))
        loss = (nll_BT * weight_BT).sum()
        options = {"allow_unused": True, "materialize_grads": True}
        return [hidden_BTD, nll_BT, *torch.autograd.grad(loss, wanted, **options)]

    sizes = config.cluster_sizes
    for ids, targets in product(TEXTS.values(), TEXTS.values()):
        expected = results(ids, targets)
        exact = [max(pair) for pair in zip(counts(ids, sizes), counts(targets, sizes), strict=True)]
        for room in (exact, [n + 2 for n in exact], [10] * len(sizes)):
            assert Room(sizes, room).holds(torch.tensor(ids))
            assert Room(sizes, room).holds(torch.tensor(targets))
            with shapes_for_any_ids(Room(sizes, room)):
                found = results(ids, targets)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("div_val", [1, 2])
def test_a_word_without_room_is_found_on_the_host_and_is_nan_on_the_device(div_val: int) -> None:
    config = ModelConfig(**SIZES | {"cutoffs": (3, 7), "div_val": div_val})
    embedding = AdaptiveEmbedding(config)
    softmax = AdaptiveSoftmax(config, embedding)
    for name, ids in TEXTS.items():
        found = counts(ids, config.cluster_sizes)
        for cluster in (1, 2):
            room = Room(config.cluster_sizes, [n - (i == cluster) for i, n in enumerate(found)])
            if found[cluster]:
                assert not room.holds(torch.tensor(ids)), name
                with shapes_for_any_ids(room):
                    assert softmax.nll(torch.randn(10, 6), torch.tensor(ids)).isnan().all()
                    rows_LD = embedding(torch.tensor([ids]))
                assert rows_LD.isnan().all() == (div_val == 2)  # else there is one table


@pytest.mark.parametrize("div_val", [1, 2])
def test_in_a_room_no_shape_depends_on_a_word(div_val: int) -> None:
    """With tensors that have no values."""
    config = ModelConfig(**SIZES | {"cutoffs": (3, 7), "div_val": div_val})
    with torch.device("meta"):
        embedding = AdaptiveEmbedding(config)
        softmax = AdaptiveSoftmax(config, embedding)
        ids = torch.empty(2, 5, dtype=torch.int64)
        with shapes_for_any_ids(Room(config.cluster_sizes, (8, 4, 3))):
            softmax.nll(embedding(ids), ids, same_weight=True).sum().backward()
        with pytest.raises(NotImplementedError, match="nonzero"):
            softmax.nll(embedding(ids), ids)


def test_room_is_sized_by_the_share_of_each_cluster_in_the_text() -> None:
    """Ten deviations above the mean, in multiples of 16, and never more than all."""
    room = Room.of((20, 40, 40), (0.9, 0.09, 0.0), 1000)
    assert list(room.at_most) == [1000, 208, 16]
    assert list(Room.of((20, 40, 40), (0.9, 0.09, 0.01), 12).at_most) == [12, 12, 12]


def test_a_hook_of_the_embedding_is_called_in_training_as_in_evaluation() -> None:
    model = TransformerXL(ModelConfig(**SIZES))
    model.word_emb.register_forward_hook(lambda module, inputs, out: out + torch.arange(6))
    ids = torch.tensor([[0, 5, 5, 11]])
    trained = model.nll(ids, ids, None, Context())[0]
    with torch.no_grad():
        torch.testing.assert_close(trained, model.nll(ids, ids, None, Context())[0])


@pytest.mark.parametrize("cut", sorted(CUTS))
def test_the_distribution_is_head_times_cluster(cut: str) -> None:
    """Written out word by word from Grave et al. 2017, sec. 4."""
    softmax = softmax_of(**CUTS[cut])
    hidden_D = torch.randn(6).double()
    sizes = softmax.sizes

    def logits(cluster: int) -> Tensor:
        projected = hidden_D if not len(softmax.projs) else hidden_D @ softmax.projs[cluster]
        if len(softmax.tables) > 1:
            return softmax.tables[cluster] @ projected + softmax.biases[cluster]
        first = sum(sizes[:cluster])
        rows = slice(first, first + sizes[cluster])
        return softmax.tables[0][rows] @ projected + softmax.biases[0][rows]

    head = logits(0)
    if len(sizes) > 1:
        projected = hidden_D if not len(softmax.projs) else hidden_D @ softmax.projs[0]
        head = torch.cat([head, softmax.cluster_weight @ projected + softmax.cluster_bias])
    head = head.exp() / head.exp().sum()
    words = [*head[: sizes[0]]]
    for cluster in range(1, len(sizes)):
        inside = logits(cluster).exp()
        words.extend(head[sizes[0] + cluster - 1] * inside / inside.sum())
    torch.testing.assert_close(softmax.log_prob(hidden_D).exp(), torch.stack(words))


def test_tied_weights_are_one_parameter() -> None:
    def model(**settings: object) -> TransformerXL:
        return TransformerXL(ModelConfig(**SIZES | {"cutoffs": (3, 7)} | settings))

    tied = model(div_val=2, tie_projs=(False, True, True))
    assert tied.softmax.tables[1] is tied.word_emb.tables[1]
    assert tied.softmax.projs[0] is not tied.word_emb.projs[0]
    assert tied.softmax.projs[2] is tied.word_emb.projs[2]
    one_table = model(d_embed=4, tie_projs=(False, True, True))
    assert one_table.softmax.projs[2] is one_table.word_emb.projs[0]
    assert model(not_tied=True).softmax.tables[0] is not model(not_tied=True).word_emb.tables[0]


@pytest.mark.parametrize("settings", [{}, CUTS["narrowing"]], ids=["no_cutoffs", "narrowing"])
def test_ids_outside_the_vocabulary_are_refused(settings: dict[str, object]) -> None:
    model, right = TransformerXL(ModelConfig(**SIZES | settings)), torch.tensor([[1]])
    for ids in (torch.tensor([[12]]), torch.tensor([[-1]])):
        with pytest.raises(ValueError, match=r"must lie in \[0, 12\)"):
            model(ids, None, Context())
        with pytest.raises(ValueError, match=r"must lie in \[0, 12\)"):
            model.nll(right, ids, None, Context())
