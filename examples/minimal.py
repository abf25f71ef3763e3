"""Transformer-XL in one file of plain PyTorch, to be read from top to bottom.

    python examples/minimal.py TEXT [MINUTES]     train on the characters of a text, then write some

The paper is Dai et al. 2019, arXiv 1901.02860; equations are those of its section 3.3. The package
`txl` computes the same (tests/examples/test_minimal.py, to 1e-12 in float64, values and gradients).
It adds what this file leaves out: adaptive softmax, other encodings and memories, speed, data.

Letters in names are the axes of a tensor: B streams, T new tokens, M remembered tokens, S = M + T
keys, D d_model, N heads, H d_head, V characters.
"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoid(distance_S: Tensor, d_model: int, dtype: torch.dtype) -> Tensor:
    """R: a row of sines, then cosines, for each distance, (S, D)."""
    rate = 1 / 10000 ** (torch.arange(0.0, d_model, 2.0, dtype=torch.float32) / d_model)
    angle = distance_S.to(dtype)[:, None] * rate.to(dtype)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def rel_shift(x_BNTS: Tensor) -> Tensor:
    """Columns by distance (S - 1, ..., 0) become columns by key (0, ..., S - 1); appendix B.

    Row t moves to the left by T - 1 - t. Padding one column and reading the memory in rows of
    another length does that at once. What lands in the future is wrong, and masked anyway.
    """
    B, N, T, S = x_BNTS.shape
    return F.pad(x_BNTS, (1, 0)).view(B, N, S + 1, T)[:, :, 1:].view(B, N, T, S)


class Layer(nn.Module):
    """Relative attention over [memory, segment], then a feed-forward network."""

    def __init__(self, d_model: int, n_head: int, d_inner: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.q_net = nn.Linear(d_model, d_model, bias=False)  # W_q
        self.k_net = nn.Linear(d_model, d_model, bias=False)  # W_k,E
        self.v_net = nn.Linear(d_model, d_model, bias=False)  # W_v
        self.r_net = nn.Linear(d_model, d_model, bias=False)  # W_k,R
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.attn_norm = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_inner, d_model)
        )
        self.ff_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, h_BTD: Tensor, mem_BMD: Tensor, R_SD: Tensor, u_NH: Tensor, v_NH: Tensor
    ) -> Tensor:
        """The layer's output for the new tokens, (B, T, D)."""
        T, M = h_BTD.shape[1], mem_BMD.shape[1]
        # h~ = [SG(memory), h]: keys and values see the memory, and no gradient flows into it
        extended_BSD = torch.cat([mem_BMD.detach(), h_BTD], dim=1)
        # q, k, v = h W_q, h~ W_k, h~ W_v
        q_BNTH = self.heads(self.q_net(h_BTD))
        k_BNSH = self.heads(self.k_net(extended_BSD))
        v_BNSH = self.heads(self.v_net(extended_BSD))
        r_NSH = self.heads(self.r_net(R_SD)[None])[0]
        # A_ij = q_i.k_j + u.k_j                     terms (a) and (c): by content
        #      + q_i.(W_k,R R_i-j) + v.(W_k,R R_i-j)     (b) and (d): by distance
        by_content_BNTS = (q_BNTH + u_NH[:, None]) @ k_BNSH.mT
        by_distance_BNTS = rel_shift((q_BNTH + v_NH[:, None]) @ r_NSH.mT)
        logit_BNTS = (by_content_BNTS + by_distance_BNTS) / q_BNTH.shape[-1] ** 0.5
        # Masked-Softmax: query t stands at position M + t, and sees no later key
        future_TS = torch.ones(T, M + T, dtype=torch.bool).triu(M + 1)
        prob_BNTS = logit_BNTS.masked_fill(future_TS, -torch.inf).softmax(-1)
        out_BTD = self.o_net((prob_BNTS @ v_BNSH).transpose(1, 2).flatten(2))
        # o = LayerNorm(Linear(a) + h), h' = LayerNorm(FF(o) + o)
        o_BTD = self.attn_norm(h_BTD + self.drop(out_BTD))
        return self.ff_norm(o_BTD + self.drop(self.ff(o_BTD)))

    def heads(self, x_BLD: Tensor) -> Tensor:
        """(B, L, D) to (B, N, L, H)."""
        return x_BLD.unflatten(-1, (self.n_head, -1)).transpose(1, 2)


class TransformerXL(nn.Module):
    """Tokens and a memory in, logits and the next memory out."""

    def __init__(
        self,
        n_token: int,
        *,
        n_layer: int = 4,
        d_model: int = 128,
        n_head: int = 4,
        d_inner: int = 512,
        mem_len: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.mem_len = mem_len
        self.embedding = nn.Embedding(n_token, d_model)
        self.layers = nn.ModuleList(
            Layer(d_model, n_head, d_inner, dropout) for _ in range(n_layer)
        )
        self.u_NH = nn.Parameter(torch.zeros(n_head, d_model // n_head))  # shared by all layers
        self.v_NH = nn.Parameter(torch.zeros(n_head, d_model // n_head))
        self.bias_V = nn.Parameter(torch.zeros(n_token))
        self.drop = nn.Dropout(dropout)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(
        self, token_BT: Tensor, memory: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits of the token after each, (B, T, V); the memory for the next segment.

        The memory is the input of each layer for the last mem_len tokens, (B, M, D). None: empty.
        """
        h_BTD = self.embedding(token_BT) * self.embedding.embedding_dim**0.5
        memory = memory or [h_BTD[:, :0]] * len(self.layers)
        n_key = memory[0].shape[1] + token_BT.shape[1]
        distance_S = torch.arange(n_key - 1, -1, -1)
        R_SD = self.drop(sinusoid(distance_S, h_BTD.shape[-1], h_BTD.dtype))
        h_BTD = self.drop(h_BTD)
        next_memory = []
        for layer, mem_BMD in zip(self.layers, memory, strict=True):
            joined_BSD = torch.cat([mem_BMD, h_BTD.detach()], dim=1)
            next_memory.append(joined_BSD[:, max(0, n_key - self.mem_len) :])
            h_BTD = layer(h_BTD, mem_BMD, R_SD, self.u_NH, self.v_NH)
        return F.linear(self.drop(h_BTD), self.embedding.weight, self.bias_V), next_memory


def train(model: TransformerXL, stream: Tensor, minutes: float, n_row: int = 16) -> None:
    """Read a text in n_row streams, segment after segment: the memory is passed on."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    row_BL = stream[: len(stream) // n_row * n_row].view(n_row, -1)
    end = time.monotonic() + 60 * minutes
    step = 0
    while time.monotonic() < end:
        memory = None
        for begin in range(0, row_BL.shape[1] - 64, 64):
            if time.monotonic() > end:
                break
            input_BT, target_BT = row_BL[:, begin : begin + 64], row_BL[:, begin + 1 : begin + 65]
            logit_BTV, memory = model(input_BT, memory)
            loss = F.cross_entropy(logit_BTV.flatten(0, 1), target_BT.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            step += 1
            if step % 50 == 1:
                print(f"update {step}: {loss.item() / 0.6931:.2f} bits per character", flush=True)


@torch.no_grad()
def write(model: TransformerXL, token_B1: Tensor, n: int) -> list[int]:
    """Draw n tokens, one at a time: each is read once, since what came before is in the memory."""
    found, memory = [], None
    for _ in range(n):
        logit_BTV, memory = model(token_B1, memory)
        token_B1 = torch.multinomial(logit_BTV[:, -1].softmax(-1), 1)
        found.append(int(token_B1))
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--help":
        sys.exit(print(__doc__))
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    characters = sorted(set(text))
    ids = torch.tensor([characters.index(c) for c in text[:1_000_000]])
    net = TransformerXL(len(characters))
    train(net, ids, minutes=float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
    print("".join(characters[i] for i in write(net.eval(), ids[:1, None], 500)))
