"""The modules of txl.hf are called: what other libraries hang on them, or put in their place, has its effect."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing._internal.two_tensor import TwoTensor

from tests.hf.models import KINDS, build, some_ids

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; run scripts/test_with_transformers.sh"
)
from txl.hf.layers import is_plain  # noqa: E402

IDS = some_ids()
of_every_kind = pytest.mark.parametrize("kind", KINDS)


def figures(model: Any) -> tuple[Tensor, Tensor]:
    """Log-probabilities and losses."""
    return model(IDS).logits, model(IDS, labels=IDS).losses


def replace_linears(model: nn.Module, new: Callable[[nn.Linear], nn.Module]) -> int:
    """Put other modules in place of all linear layers; how many there were."""
    n_linear = 0
    for parent in [*model.modules()]:
        for name, layer in [*parent.named_children()]:
            if isinstance(layer, nn.Linear):
                setattr(parent, name, new(layer))
                n_linear += 1
    return n_linear


class Adapter(nn.Module):
    """What PEFT's LoRA puts in place of a linear layer: the layer, frozen, and two narrow ones beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.Linear(layer.in_features, 4, bias=False)
        self.lora_B = nn.Linear(4, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def train(model: Any, n_step: int = 10) -> list[float]:
    """Losses of a training on one batch."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.Adam(weights, lr=0.02), []
    for _ in range(n_step):
        loss = model.train()(input_ids=IDS, labels=IDS).loss
        loss.backward()
        assert all(weight.grad is not None for weight in weights)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@of_every_kind
def test_hooks_fire_on_every_module_and_change_no_figure(kind: str) -> None:
    """Lists are no modules that compute. With labels, also where no word lies in a cluster."""
    model = build(kind=kind)
    scores_BTV, losses_BT = figures(model)
    lists = (nn.ModuleList, nn.ParameterList)
    names = {name for name, module in model.named_modules() if not isinstance(module, lists)}
    fired: set[str] = set()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.add(name))
    torch.testing.assert_close(model(IDS).logits, scores_BTV)
    assert fired == names
    fired.clear()
    torch.testing.assert_close(model(IDS, labels=IDS).losses, losses_BT)
    assert fired == names
    fired.clear()
    shortlist = IDS % 10
    model(shortlist, labels=shortlist).loss.backward()
    assert fired == names
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_a_hook_returns_is_taken() -> None:
    model = build()
    scores_BTV, losses_BT = figures(model)
    attention, o_net = (
        model.transformer.layers[0].dec_attn,
        model.transformer.layers[0].dec_attn.o_net,
    )
    modules = [o_net, attention.qkv_net, attention.r_net, attention.dropatt, attention.layer_norm]
    for module in (*modules, *model.crit.out_layers):
        handle = module.register_forward_hook(
            lambda _, args, output: output - output.roll(1, -1) / 2
        )
        for found, before in zip(figures(model), (scores_BTV, losses_BT), strict=True):
            assert not torch.allclose(found, before), module
        handle.remove()
    torch.testing.assert_close(figures(model), (scores_BTV, losses_BT))


@of_every_kind
def test_embeddings_are_modules(kind: str) -> None:
    model = build(kind=kind)
    table, embedded_BTD = model.get_output_embeddings(), model.get_input_embeddings()(IDS)
    assert torch.equal(model(inputs_embeds=embedded_BTD).logits, model(IDS).logits)
    words = model.transformer.word_emb
    tables = [layer.weight for layer in words.emb_layers]
    if len(words.emb_projs):
        tables = [table_VE @ proj.T for table_VE, proj in zip(tables, words.emb_projs, strict=True)]
    # the root of d_model
    torch.testing.assert_close(words(torch.arange(60)), torch.cat(tables) * 4)
    assert isinstance(table, nn.Linear)
    assert model.transformer.get_input_embeddings() is model.get_input_embeddings()
    n_embedded = sum(layer.weight.numel() for layer in model.transformer.word_emb.emb_layers)
    assert model.num_parameters(exclude_embeddings=True) == model.num_parameters() - n_embedded
    scores_BTV = model(IDS).logits
    with torch.no_grad():
        table.bias[-1] += 50  # the last word, of the last cluster
    found_BTV = model(IDS).logits
    assert (found_BTV[..., -1] > scores_BTV[..., -1] + 0.01).all()


@pytest.mark.parametrize("settings", [{}, {"mem_len": 0, "same_length": False}])
def test_texts_continue_embedded_prompts(settings: dict[str, Any]) -> None:
    model = build(**settings)
    embedded_BTD = model.get_input_embeddings()(IDS)
    for n_beam in (1, 2):
        how = {
            "max_new_tokens": 5,
            "do_sample": False,
            "eos_token_id": -1,
            "pad_token_id": 0,
            "num_beams": n_beam,
        }
        text_BT = model.generate(IDS, **how)
        assert torch.equal(
            model.generate(inputs_embeds=embedded_BTD, **how), text_BT[:, IDS.shape[1] :]
        )


def test_neftune_changes_losses(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    arguments = {
        "max_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
    }

    def losses(**noise: float) -> list[float]:
        how = transformers.TrainingArguments(str(tmp_path), disable_tqdm=True, **arguments, **noise)
        texts = [{"input_ids": row, "labels": row} for row in IDS]
        trainer = transformers.Trainer(build(trainer_compatible=True), how, train_dataset=texts)
        trainer.train()
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    plain, noisy = losses(), losses(neftune_noise_alpha=50.0)
    assert len(plain) == 2
    assert all(abs(a - b) > 1e-3 for a, b in zip(plain, noisy, strict=True))
    assert losses() == plain


@of_every_kind
def test_adapters_in_place_of_linear_layers_train(kind: str) -> None:
    """As PEFT does, by hand."""
    model = build(kind=kind)
    before = figures(model)
    model.requires_grad_(False)
    assert replace_linears(model, Adapter) == 5 * 2 + len(model.crit.out_layers)
    torch.testing.assert_close(figures(model), before)
    losses = train(model)
    assert losses[-1] < losses[0] - 0.3
    assert before[1].mean().item() == pytest.approx(losses[0], rel=1e-5)
    text_BT = model.eval().generate(
        IDS, max_new_tokens=2, do_sample=False, pad_token_id=0, eos_token_id=-1
    )
    assert text_BT.shape == (3, 10)


class Doubled(nn.Linear):
    """As quantising libraries do: a kind of linear layer, computed in another way."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@of_every_kind
def test_another_kind_of_linear_layer_is_called(kind: str) -> None:
    def doubled(layer: nn.Linear) -> nn.Module:
        new = Doubled(layer.in_features, layer.out_features, bias=layer.bias is not None)
        new.load_state_dict(layer.state_dict())
        return new

    model, expected = build(kind=kind), build(kind=kind, tie_word_embeddings=False)
    expected.load_state_dict(model.state_dict(), strict=False)
    replace_linears(model, doubled)
    for module in expected.modules():
        if isinstance(module, nn.Linear):
            for parameter in module.parameters():
                parameter.data *= 2
    torch.testing.assert_close(figures(model), figures(expected))


def test_a_weight_that_is_no_plain_tensor_is_left_to_its_layer() -> None:
    """As torchao puts quantised ones into linear layers, and FSDP its shards."""
    layer = nn.Linear(4, 6)
    assert is_plain(layer, nn.Linear)
    layer.weight = nn.Parameter(TwoTensor(torch.ones(6, 4), torch.ones(6, 4)))
    assert not is_plain(layer, nn.Linear)


@pytest.mark.parametrize(
    "names",
    [
        ["qkv_net", "o_net", "r_net", "CoreNet.0", "CoreNet.3"],
        ["qkv_net", "emb_layers.0", "out_layers.1"],
    ],
)
def test_lora_of_peft_trains_and_is_read_again(names: list[str], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    before = figures(build())
    model: Any = peft.get_peft_model(
        build(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=names)
    )
    torch.testing.assert_close(figures(model), before)
    losses = train(model)
    assert losses[-1] < losses[0] - 0.1
    model.eval().save_pretrained(tmp_path)
    torch.testing.assert_close(
        figures(peft.PeftModel.from_pretrained(build(), tmp_path)), figures(model)
    )


def test_layer_norms_train_alone_and_can_be_replaced() -> None:
    model = build().requires_grad_(False)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 4
    for norm in norms:
        norm.requires_grad_(True)
    losses = train(model, 20)
    assert losses[-1] < losses[0] - 0.3
    for layer in model.transformer.layers:
        for part in (layer.dec_attn, layer.pos_ff):
            before = figures(model.eval())
            part.layer_norm = nn.Identity()
            assert not torch.allclose(figures(model)[0], before[0])


@of_every_kind
def test_pruned_weights_are_those_of_their_masks(kind: str) -> None:
    model, masked = build(kind=kind), build(kind=kind)
    before = figures(model)
    for (_, layer), (_, same) in zip(model.named_modules(), masked.named_modules(), strict=True):
        is_tied = kind != "untied" and layer in [*model.crit.out_layers]
        if isinstance(layer, nn.Linear | nn.Embedding) and not is_tied:
            prune.l1_unstructured(layer, "weight", 0.5)
            same.weight.data *= layer.weight_mask
    if kind != "untied":  # a table is pruned as the embedding's, and as that of the softmax
        masked.crit = build(kind=kind).crit
    found = figures(model)
    torch.testing.assert_close(found, figures(masked))
    assert not torch.allclose(found[0], before[0])
    assert not torch.allclose(found[1], before[1])


@of_every_kind
@pytest.mark.filterwarnings("ignore")  # it moves to a package of its own
def test_dynamic_quantisation_finds_linear_layers_and_changes_results(kind: str) -> None:
    model = build(kind=kind)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert len(names) == 5 * 2 + len(model.crit.out_layers)
    for name in names:
        assert type(quantised.get_submodule(name)) is not nn.Linear
    for found, before in zip(figures(quantised), figures(model), strict=True):
        difference = (found - before).abs().mean()
        assert 0 < float(difference) < 0.3 * float(before.std())


class Step(nn.Module):
    """Scores, losses and memory, as functions of tensors alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, *mems: Tensor) -> tuple[Tensor, ...]:
        out = self.model(ids_BT, mems=list(mems) or None, attention_mask=mask_BT)
        scored = self.model(ids_BT, mems=list(mems) or None, labels=ids_BT, attention_mask=mask_BT)
        return out.logits, scored.losses, *(out.mems or ())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["narrower clusters", "one table, projected"])
def test_exported_graphs_compute_the_same_for_other_ids_sizes_and_padding(kind: str) -> None:
    step = Step(build(kind=kind))
    mask_BT = torch.ones_like(IDS)
    B, T = torch.export.Dim("B", min=2, max=64), torch.export.Dim("T", min=3, max=64)
    graph = torch.export.export(
        step, (IDS, mask_BT), dynamic_shapes=({0: B, 1: T}, {0: B, 1: T})
    ).module()
    ids_BT, padded_BT = some_ids(5, 11), torch.ones(5, 11, dtype=torch.int64)
    padded_BT[0, :4] = 0
    torch.testing.assert_close(graph(ids_BT, padded_BT), step(ids_BT, padded_BT))
    mems = step(IDS, mask_BT)[2:]
    graph = torch.export.export(step, (IDS, mask_BT, *mems)).module()
    torch.testing.assert_close(
        graph(ids_BT[:3, :8], mask_BT, *mems), step(ids_BT[:3, :8], mask_BT, *mems)
    )
    # a graph that runs elsewhere, too
    assert not any("txl" in str(node.target) for node in graph.graph.nodes)


def test_a_traced_graph_computes_the_same() -> None:
    step, mask_BT, others_BT = Step(build()), torch.ones_like(IDS), some_ids(4)[1:]
    graph = torch.jit.trace(step, (IDS, mask_BT), check_trace=False)
    torch.testing.assert_close(graph(others_BT, mask_BT)[0], step(others_BT, mask_BT)[0])


@of_every_kind
def test_words_are_added_to_the_last_cluster_and_taken_away(kind: str, tmp_path: Path) -> None:
    model = build(kind=kind)
    scores_BTV, embedded_BTD = model(IDS).logits, model.get_input_embeddings()(IDS)
    n_word, n_cluster = scores_BTV.shape[-1], len(model.config.cutoffs)
    assert model.resize_token_embeddings(n_word) is model.get_input_embeddings()
    assert torch.equal(model(IDS).logits, scores_BTV)
    model.resize_token_embeddings(n_word + 4)
    found_BTV = model(IDS).logits
    assert torch.equal(model.get_input_embeddings()(IDS), embedded_BTD)
    assert found_BTV.shape[-1] == model.config.vocab_size == n_word + 4
    torch.testing.assert_close(found_BTV.exp().sum(-1), torch.ones(IDS.shape))
    if n_cluster:
        torch.testing.assert_close(found_BTV[..., :10], scores_BTV[..., :10])
    new = torch.full_like(IDS, n_word + 3)
    assert model(new, labels=new).loss.isfinite()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(IDS).logits, found_BTV)
    model.resize_token_embeddings(n_word)
    torch.testing.assert_close(model(IDS).logits, scores_BTV)
    model.resize_token_embeddings(pad_to_multiple_of=32, mean_resizing=False)
    assert model.config.vocab_size == 64
    with pytest.raises(ValueError, match=r"words, but the last cluster begins at"):
        model.resize_token_embeddings(model.config.cutoffs[-1] if n_cluster else 0)
