"""Text from a model: one token after another, the memory carrying what came before."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from txl.config import Context
from txl.model import TransformerXL


def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    context: Context,
    *,
    length: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    banned: Sequence[int] = (),
    seed: int | None = None,
) -> Iterator[int]:
    """Yield `length` token ids that go on from `prompt`, each as soon as it is drawn.

    The prompt is read in segments of `context.tgt_len`, then each token alone.

    Args:
        temperature, top_k, top_p: see `next_probabilities`.
        banned: ids that are never drawn.
        seed: makes the result repeatable; None: PyTorch's own generator.
    Raises:
        ValueError: if the prompt is empty or holds an id outside the vocabulary.
    """
    if not len(prompt):
        raise ValueError("the prompt is empty: the model needs at least one token to go on from")
    device = next(model.parameters()).device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    segments = torch.tensor([list(prompt)], device=device).split(context.tgt_len, dim=1)
    memory = model.fresh_memory(1)
    for _ in range(length):
        with torch.inference_mode():
            for segment_BT in segments:
                hidden_BTD, memory = model(segment_BT, memory, context)
            logprob_V = model.log_prob(hidden_BTD[0, -1])
            logprob_V[list(banned)] = -torch.inf
            prob_V = next_probabilities(logprob_V, temperature=temperature, top_k=top_k, top_p=top_p)
            token = torch.multinomial(prob_V, 1, generator=generator)
        segments = (token[None],)
        yield int(token)


def next_probabilities(logprob_V: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """What the next token is drawn from.

    Args:
        temperature: log-probabilities are divided by it; 0 leaves the likeliest token alone.
        top_k: only the k likeliest tokens are kept; 0: all. Tokens as likely as the k-th are kept too.
        top_p: then only the likeliest tokens that together hold this probability (Holtzman et al. 2020).
    Returns:
        Probabilities (V,) that sum to 1.
    """
    if temperature == 0:
        return torch.zeros_like(logprob_V).index_fill(0, logprob_V.argmax(), 1.0)
    logprob_V = (logprob_V - logprob_V.max()) / temperature  # from 0 downward: no temperature makes them overflow
    if 0 < top_k < len(logprob_V):
        logprob_V = logprob_V.masked_fill(logprob_V < logprob_V.topk(top_k).values[-1], -torch.inf)
    prob_V = logprob_V.softmax(-1)
    if top_p < 1:
        sorted_V, order_V = prob_V.sort(descending=True)
        before_V = sorted_V.cumsum(0) - sorted_V  # a token stays while those before it hold less than top_p
        prob_V = prob_V.index_fill(0, order_V[before_V >= top_p], 0.0)
        prob_V = prob_V / prob_V.sum()
    return prob_V
