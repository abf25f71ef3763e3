"""What transformers' own tests ask of every model, of this one too: outputs, weights, training, generation."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.hf.models import KINDS, SIZES, build, some_ids

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; run scripts/test_with_transformers.sh"
)
import txl.hf  # noqa: E402

CLASSES = ["TransfoXLModel", "TransfoXLLMHeadModel", "TransfoXLForSequenceClassification"]
IDS = some_ids()
GREEDY: dict[str, Any] = {
    "max_new_tokens": 5,
    "do_sample": False,
    "eos_token_id": -1,
    "pad_token_id": 0,
}
of_every_class = pytest.mark.parametrize("cls", CLASSES)


def model_of(cls: str, **settings: Any) -> Any:
    return build(
        cls, **{"pad_token_id": 0, "num_labels": 3} if cls == CLASSES[2] else {}, **settings
    )


# what is computed


@of_every_class
def test_outputs_have_their_shapes_and_come_as_a_tuple_too(cls: str) -> None:
    model = model_of(cls)
    n_key = SIZES["mem_len"] + IDS.shape[1]
    out = model(IDS, output_hidden_states=True, output_attentions=True)
    assert [mem.shape for mem in out.mems] == [(6, 3, 16)] * 2
    assert [state.shape for state in out.hidden_states] == [(3, 8, 16)] * 3
    assert [prob.shape for prob in out.attentions] == [(3, 2, 8, n_key)] * 2
    torch.testing.assert_close(out.attentions[0].sum(-1), torch.ones(3, 2, 8))
    as_tuple = model(IDS, output_hidden_states=True, output_attentions=True, return_dict=False)
    torch.testing.assert_close(as_tuple[0], out[0])
    torch.testing.assert_close(as_tuple[-2:], (out.hidden_states, out.attentions))
    model.config.output_hidden_states = model.config.output_attentions = True
    torch.testing.assert_close(model(IDS).attentions, out.attentions)
    torch.testing.assert_close(model(IDS)[0], out[0])


@of_every_class
def test_states_and_probabilities_get_gradients(cls: str) -> None:
    out = model_of(cls)(IDS, output_hidden_states=True, output_attentions=True)
    for tensor in (*out.hidden_states, *out.attentions):
        tensor.retain_grad()
    out[0].flatten()[0].backward()
    assert all(tensor.grad is not None for tensor in (*out.hidden_states, *out.attentions))


def test_arguments_of_other_models_are_taken() -> None:
    """`use_cache`, `position_ids` that say nothing new, `logits_to_keep`."""
    model = model_of(CLASSES[1])
    out = model(IDS)
    again = model(IDS, use_cache=True, position_ids=torch.arange(5, 13)[None])
    torch.testing.assert_close((again.logits, again.mems), (out.logits, out.mems))
    with pytest.raises(ValueError, match="1 mems: must be 2, one of each layer"):
        model(IDS, mems=out.mems[:1])
    for cls in CLASSES:
        assert model_of(cls)(IDS, use_cache=False).mems is None
    for kept, places in ((2, [-2, -1]), (torch.tensor([0, 5]), [0, 5])):
        # a product of fewer rows is rounded otherwise on some processors
        logits = model(IDS, logits_to_keep=kept).logits
        torch.testing.assert_close(logits, out.logits[:, places])
    losses = [model(IDS, labels=IDS, **kept).losses for kept in ({"logits_to_keep": 1}, {})]
    torch.testing.assert_close(*losses)
    mask_BT, ids_BT = torch.ones_like(IDS), IDS.clone()
    mask_BT[0, :3], ids_BT[0, :3] = 0, 0
    places_BT = (mask_BT.cumsum(1) - 1).masked_fill(mask_BT == 0, 1)  # as `generate` makes them
    padded = model(ids_BT, attention_mask=mask_BT, position_ids=places_BT)
    torch.testing.assert_close(padded.logits[0, 3:], model(IDS[:1, 3:]).logits[0])
    with pytest.raises(ValueError, match="position_ids must count up by one in each row"):
        model(IDS, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]))


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_memory_a_padded_row_is_read_as_it_would_be_alone(kind: str) -> None:
    model = build(kind=kind, mem_len=0, same_length=False)
    mask_BT, ids_BT = torch.ones_like(IDS), IDS.clone()
    mask_BT[0, :3], ids_BT[0, :3] = 0, 0
    padded = model(ids_BT, attention_mask=mask_BT)
    assert padded.mems is None
    torch.testing.assert_close(padded.logits[0, 3:], model(IDS[:1, 3:]).logits[0])
    torch.testing.assert_close(padded.logits[1:], model(IDS[1:]).logits)
    together = model.generate(ids_BT, attention_mask=mask_BT, **GREEDY)
    assert torch.equal(together[0, 8:], model.generate(IDS[:1, 3:], **GREEDY)[0, 5:])


def test_a_memory_that_nobody_could_see_is_told_in_the_words_of_python() -> None:
    """transformers 4 attends to everything then, the future too."""
    with pytest.raises(
        ValueError, match=r"^mem_len 0: with same_length a token sees mem_len keys; set same_length"
    ):
        build(mem_len=0)
    model = build()
    with pytest.raises(ValueError, match=r"^mem_len 0: with same_length"):
        model.reset_memory_length(0)
    with pytest.raises(
        ValueError, match=r"^cutoffs 20000 40000 200000: beyond the vocabulary of 60 words"
    ):
        txl.hf.TransfoXLModel(txl.hf.TransfoXLConfig(vocab_size=60))


# weights


@of_every_class
def test_weights_are_the_same_after_saving_copying_and_from_a_state_dict(
    cls: str, tmp_path: Path
) -> None:
    model, known = model_of(cls), getattr(txl.hf, cls)
    model.save_pretrained(tmp_path)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fresh = known(model.config)
    fresh.load_state_dict(state)
    others = [known.from_pretrained(tmp_path), copy.deepcopy(model), fresh]
    others.append(known.from_pretrained(None, config=model.config, state_dict=state))
    for other in others:
        assert torch.equal(other.eval()(IDS)[0], model(IDS)[0])


def test_a_body_is_read_into_a_head_and_out_of_it(tmp_path: Path) -> None:
    body, whole = build("TransfoXLModel"), build()
    body.save_pretrained(tmp_path / "body")
    whole.save_pretrained(tmp_path / "whole")
    for cls in CLASSES[1:]:
        for source, states_BTD in (("body", body(IDS)[0]), ("whole", whole.transformer(IDS)[0])):
            model = getattr(txl.hf, cls).from_pretrained(tmp_path / source)
            assert torch.equal(model.transformer(IDS)[0], states_BTD)
    assert torch.equal(
        txl.hf.TransfoXLModel.from_pretrained(tmp_path / "whole")(IDS)[0], whole.transformer(IDS)[0]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_ties_are_known_and_hold(kind: str) -> None:
    model = build(kind=kind)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    tied = {name for group in names.values() for name in group[1:]}
    assert tied == set(model.get_expanded_tied_weights_keys(all_submodels=True))
    assert bool(tied) == (kind != "untied")


def test_fresh_weights_follow_the_configuration() -> None:
    settings = {"init_std": 1e-9, "proj_init_std": 1e-9}
    for parameter in build(**settings).parameters():
        assert round(parameter.detach().mean().item(), 6) in (0.0, 1.0)
    model = build(init="uniform", init_range=0.25, proj_init_std=3.0)
    weight, proj = (
        model.transformer.layers[0].dec_attn.qkv_net.weight,
        model.transformer.word_emb.emb_projs[0],
    )
    assert 0.2 < float(weight.detach().abs().max()) <= 0.25
    assert float(proj.detach().abs().max()) > 3
    assert not model.crit.cluster_bias.any()


def test_embeddings_can_be_replaced() -> None:
    model = build()
    new = nn.Embedding(SIZES["vocab_size"], 16)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new
    assert torch.equal(model(IDS).logits, model(inputs_embeds=new(IDS)).logits)
    head = nn.Linear(4, 30, bias=False)
    model.set_output_embeddings(head)
    assert model.get_output_embeddings() is head
    losses_BT = -model(IDS).logits[:, :-1].gather(-1, IDS[:, 1:, None])[..., 0]
    torch.testing.assert_close(model(IDS, labels=IDS).losses, losses_BT)


# training


@pytest.mark.parametrize(
    "problem", ["regression", "single_label_classification", "multi_label_classification"]
)
@pytest.mark.parametrize("is_recomputed", [False, True])
def test_a_classifier_learns_each_kind_of_label(problem: str, is_recomputed: bool) -> None:
    n_label = 1 if problem == "regression" else 3
    labels: dict[str, Tensor] = {
        "regression": torch.tensor([0.5, 2.0, -1.0]),
        "single_label_classification": torch.tensor([0, 2, 1]),
        "multi_label_classification": torch.tensor(
            [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        ),
    }
    model = build(CLASSES[2], num_labels=n_label, problem_type=problem, pad_token_id=0).train()
    if is_recomputed:
        model.gradient_checkpointing_enable()
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(6):
        loss = model(IDS, labels=labels[problem]).loss
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


# generation


def test_every_way_to_generate_has_its_shape() -> None:
    model = build()
    for settings, n_row in (
        ({}, 3),
        ({"do_sample": True, "num_return_sequences": 2}, 6),
        ({"num_beams": 3, "num_return_sequences": 2}, 6),
        ({"num_beams": 2, "do_sample": True, "top_k": 5}, 3),
        ({"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}, 3),
        ({"use_cache": False}, 3),
    ):
        text_BT = model.generate(IDS, **{**GREEDY, **settings})
        assert text_BT.shape == (n_row, 13)
        assert torch.equal(text_BT[:: n_row // 3, :8], IDS)
    how = {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True}
    out = model.generate(IDS, output_hidden_states=True, **how, **GREEDY)
    assert [len(part) for part in (out.scores, out.attentions, out.hidden_states)] == [5] * 3
    assert [step[0].shape[2:] for step in out.attentions] == [(8, 14)] + [(1, 7)] * 4
    assert [step[0].shape[1] for step in out.hidden_states] == [8] + [1] * 4
