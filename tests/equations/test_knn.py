"""The lookup of Memorizing Transformers against loops over rows, heads, queries and remembered tokens, in float64."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equations.beside import B, M, N, T, beside, compare, unit
from tests.laws.conftest import N_TOKEN, build, read
from txl import Context
from txl.config import UsageError

K, LENGTH = 2, 7


def by_the_book(rule: Any, layer: Any, left: list[Tensor], qs: list[Tensor]) -> list[Tensor]:
    out = [torch.zeros_like(q) for q in qs]
    for b in range(B):
        for n in range(N):
            stored: list[tuple[Tensor, Tensor]] = []
            for i, (left_BLD, q_BNTH) in enumerate(zip(left, qs, strict=True)):
                for t in range(T):
                    q_H = unit(q_BNTH[b, n, t])
                    near = sorted(stored, key=lambda pair: (q_H * pair[0]).sum().item())[-K:]
                    powers = [(rule.scale_N[n].exp() * (q_H * k_H).sum()).exp() for k_H, _ in near]
                    read = sum(
                        (p / sum(powers) * v_H for p, (_, v_H) in zip(powers, near, strict=True)), torch.zeros(())
                    )
                    out[i][b, n, t] = beside(rule.gate_N[n], read)
                new = [(unit(layer.k_NHD[n] @ x_D), layer.v_NHD[n] @ x_D) for x_D in left_BLD[b]]
                stored = [*stored, *((k_H.detach(), v_H.detach()) for k_H, v_H in new)][-LENGTH:]
    return out


CONTEXT = Context(tgt_len=T, mem_len=M, lookup_len=LENGTH)


def test_what_is_read_is_the_formula(seeded: None) -> None:
    compare(by_the_book, CONTEXT, memory="knn", lookup_k=K)


@pytest.mark.parametrize("reset", [False, True])
def test_faiss_finds_the_same(reset: bool, seeded: None) -> None:
    """Also where documents begin, and with fewer keys than are asked for."""
    pytest.importorskip("faiss")
    model = build("knn", lookup_k=K).train()
    token_BT = torch.randint(0, N_TOKEN, (2, 24))
    since_BT = torch.arange(24).expand(2, 24).clone()
    since_BT[0, 9:] -= 9
    found = []
    for by_faiss in (False, True):
        context = replace(CONTEXT, lookup_faiss=by_faiss)
        hidden_BTD, _ = read(model, token_BT, [5, 5, 5, 5, 4], context, since_BT=since_BT if reset else None)
        grads = torch.autograd.grad(hidden_BTD.square().sum(), list(model.layers.parameters()))  # type: ignore[attr-defined]
        found.append([hidden_BTD, *grads])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_without_faiss_its_flag_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match=r"^--lookup_faiss: faiss is not installed; run: pip install faiss-cpu, or"):
        build("knn")(torch.zeros(1, 2, dtype=torch.long), None, replace(CONTEXT, lookup_faiss=True))
