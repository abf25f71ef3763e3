"""A classifier of texts on a language model, and its training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl import LanguageModel

Example = tuple[list[int], int]
"""The ids of a text, and its class."""


class Classifier(nn.Module):
    """Scores of classes from the last hidden state of a text, which has seen all of it.

    Long texts are read in segments with memory; gradients flow through the last segment, as in training.
    """

    def __init__(self, lm: LanguageModel, n_class: int) -> None:
        super().__init__()
        self.model, self.eos_id = lm.model, lm.tokenizer.eos_id
        self.context = replace(
            lm.context, ext_len=0, mem_len=max(lm.context.mem_len, lm.context.tgt_len)
        )
        self.head = nn.Linear(lm.model.config.d_model, n_class).to(lm.model.device)

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Scores (B, C) of texts, each at least one token."""
        token_BT, since_BT = padded(texts, pad=self.eos_id)
        memory, hidden_BTD = None, torch.empty(0)
        parts = zip(
            *(x.flip(1).split(self.context.tgt_len, dim=1) for x in (token_BT, since_BT)),
            strict=True,
        )
        segments = [(token.flip(1), since.flip(1)) for token, since in parts]
        # the last one is whole
        for number, (segment_BT, since) in enumerate(reversed(segments), start=1):
            with torch.set_grad_enabled(self.training and number == len(segments)):
                hidden_BTD, memory = self.model(segment_BT, memory, self.context, since)
        return self.head(hidden_BTD[:, -1])


def padded(texts: Sequence[Sequence[int]], *, pad: int) -> tuple[Tensor, Tensor]:
    """Texts that end together, (B, T), after padding; and how many tokens before each one belong to its text, which a
    token must not see beyond (`TransformerXL.forward`)."""
    longest = max(map(len, texts))
    token_BT = torch.full((len(texts), longest), pad)
    since_BT = torch.zeros_like(token_BT)
    for row, ids in enumerate(texts):
        token_BT[row, longest - len(ids) :] = torch.tensor(ids)
        since_BT[row, longest - len(ids) :] = torch.arange(len(ids))
    return token_BT, since_BT


def batches(
    examples: Sequence[Example], size: int, generator: torch.Generator
) -> Iterator[list[Example]]:
    """All examples once, in random batches of texts of similar length."""
    noise = torch.rand(len(examples), generator=generator).tolist()
    order = sorted(range(len(examples)), key=lambda i: len(examples[i][0]) * (0.8 + 0.4 * noise[i]))
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    for i in torch.randperm(len(groups), generator=generator).tolist():
        yield [examples[j] for j in groups[i]]


def train_epoch(
    classifier: Classifier,
    examples: Sequence[Example],
    optimizer: torch.optim.Optimizer,
    size: int,
    seed: int,
) -> float:
    """One pass over the examples; the mean loss in nats."""
    classifier.train()
    total = 0.0
    for batch in batches(examples, size, torch.Generator().manual_seed(seed)):
        target_B = torch.tensor([label for _, label in batch], device=classifier.model.device)
        loss = F.cross_entropy(classifier([ids for ids, _ in batch]), target_B)
        loss.backward()
        nn.utils.clip_grad_norm_(classifier.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() * len(batch)
    return total / len(examples)


@torch.no_grad()
def accuracy(classifier: Classifier, examples: Sequence[Example], size: int = 32) -> float:
    """The share of examples whose class has the highest score."""
    classifier.eval()
    right = 0
    for begin in range(0, len(examples), size):
        batch = examples[begin : begin + size]
        found_B = classifier([ids for ids, _ in batch]).argmax(-1).tolist()
        right += sum(found == label for found, (_, label) in zip(found_B, batch, strict=True))
    return right / len(examples)
