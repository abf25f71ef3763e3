"""`txl.hf` in the newest transformers, against our own model and against transformers 4.35.2.

scripts/test_with_transformers.sh makes both environments and runs these tests.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.convert import convert
from txl.data_utils.tokens import Vocab
from txl.evaluation.conventions import ZeroMemory
from txl.generation import sampling
from txl.generation.sampling import beam_search
from txl.language.export import write_huggingface
from txl.language.model import LanguageModel
from txl.model.transformer import TransformerXL
from txl.programs.convert import main as convert_main

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; run scripts/test_with_transformers.sh"
)
import txl  # noqa: E402
import txl.hf  # noqa: E402

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[1] / "golden" / "hf"
NAMES = ["hf_div2", "x_hf_div1_emb16_tie_r"]
OTHERS = ["div4", "untied", "shared_biases", "no_clusters"]
GREEDY = {"do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
SENTENCES = [
    "The 23,000 people -- well-known ones -- aren't 1.80 m tall, said Dr. Smith.",
    'He said: "No" ; <eos> and a <formula> cost $5.50 (about 3%).',
]
"""Those of with_transformers_4.py."""
HELPER = Path(__file__).parent / "with_transformers_4.py"


def transformers_4(task: str, folder: Path) -> None:
    python = os.environ.get("TXL_TRANSFORMERS_4", "")
    if not Path(python).is_file():
        pytest.skip("transformers 4.35.2 is not there; run scripts/test_with_transformers.sh")
    subprocess.run(
        [python, "-W", "ignore", HELPER, task, folder], check=True, capture_output=True, cwd=folder
    )


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that transformers 4.35.2 saved, with what it computes."""
    folder = tmp_path_factory.mktemp("made")
    transformers_4("make", folder)
    return folder


def load(folder: Path, **settings: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **settings)


class Sliding:
    """In place of our reader: memory slides after the prompt and after each token, as that of transformers does."""

    def __init__(self, model: Any, context: Any, batch_size: int, begun: None = None) -> None:
        self.model, self.context = model, context
        self.memory = ZeroMemory(model, context.mem_len).fresh_memory(batch_size)

    @torch.no_grad()
    def read(self, token_BT: Tensor) -> Tensor:
        hidden_BTD, self.memory = self.model(token_BT, self.memory, self.context)
        return hidden_BTD

    def take_rows(self, index_B: Tensor) -> None:
        self.memory = self.memory.rows(index_B)


def ours_greedy(
    folder: Path, prompt_BT: Tensor, length: int, memory: Any = None
) -> tuple[Tensor, Any]:
    """Greedy continuation by our own model, reading the last token at each step."""
    converted = convert(folder)
    reader = ZeroMemory(converted.model, converted.context.mem_len)
    memory = reader.fresh_memory(len(prompt_BT)) if memory is None else memory
    new_BT, out_BT = prompt_BT, prompt_BT
    for _ in range(length):
        hidden_BTD, memory = converted.model(new_BT, memory, converted.context)
        new_BT = converted.model.log_prob(hidden_BTD[:, -1:]).argmax(-1)
        out_BT = torch.cat([out_BT, new_BT], dim=1)
    return out_BT, memory


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("prefix", "dtype", "near"), [("", "float32", 1e-5), ("f64/", "float64", 1e-9)]
)
def test_the_losses_are_those_of_transformers_4(
    name: str, prefix: str, dtype: str, near: float
) -> None:
    golden = np.load(GOLDEN / name / "golden.npz")
    model, mems = load(GOLDEN / name, dtype=dtype), None
    for i in range(3):
        input_BT, target_BT = (
            torch.from_numpy(golden[f"seg{i}/{key}"]) for key in ("input_ids", "target")
        )
        out = model(input_BT, mems=mems)
        nll_BT = -out.logits.gather(2, target_BT[..., None])[..., 0]
        theirs = torch.from_numpy(golden[f"{prefix}seg{i}/nll"]).to(nll_BT.dtype)
        torch.testing.assert_close(nll_BT, theirs, rtol=0, atol=near)
        whole_BT = torch.cat([input_BT, target_BT[:, -1:]], dim=1).masked_fill(
            torch.eye(11)[3].bool(), -100
        )
        scored = model(torch.cat([input_BT, target_BT[:, -1:]], dim=1), mems=mems, labels=whole_BT)
        theirs[:, 2] = 0.0  # the label that is left out
        torch.testing.assert_close(scored.losses, theirs, rtol=0, atol=near)
        torch.testing.assert_close(scored.loss, theirs[theirs != 0].mean(), rtol=0, atol=near)
        mems = out.mems


@pytest.mark.parametrize("name", NAMES)
def test_greedy_generation_is_ours_token_by_token_with_and_without_mems(name: str) -> None:
    model, prompt_BT = load(GOLDEN / name), torch.tensor([[3, 150, 5, 9], [70, 8, 199, 1]])
    settings = {"max_new_tokens": 40, **GREEDY}
    assert torch.equal(
        model.generate(prompt_BT, **settings), ours_greedy(GOLDEN / name, prompt_BT, 40)[0]
    )
    before_BT = torch.tensor([[11, 12, 130] * 5, [13, 14, 15] * 5])
    mems = model(before_BT).mems
    given = model.generate(prompt_BT, mems=mems, return_dict_in_generate=True, **settings)
    _, memory = ours_greedy(GOLDEN / name, before_BT, 1)
    expected, last = ours_greedy(GOLDEN / name, prompt_BT, 40, memory)
    assert torch.equal(given.sequences, expected)
    assert given.sequences.shape == (2, 44)
    ending = torch.stack(
        [mem_MBD.transpose(0, 1) for mem_MBD in given.past_key_values or given.mems]
    )
    torch.testing.assert_close(ending, torch.stack(last.layers), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_padded_row_is_read_as_it_would_be_alone(name: str) -> None:
    """Outputs, memories, losses, gradients and greedy continuations, with more and with less padding than memory."""
    model = load(GOLDEN / name, dtype="float64")
    rows = [[3, 150, 5, 9], list(range(7, 36)), [70]]
    width = max(map(len, rows))
    ids_BT = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask_BT = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    out = model(ids_BT, attention_mask=mask_BT)
    settings = {"max_new_tokens": 25, **GREEDY}
    together = model.generate(ids_BT, attention_mask=mask_BT, **settings)
    for b, row in enumerate(rows):
        alone = model(torch.tensor([row]))
        torch.testing.assert_close(out.logits[b, width - len(row) :], alone.logits[0])
        torch.testing.assert_close(torch.stack(out.mems)[:, :, b], torch.stack(alone.mems)[:, :, 0])
        assert (
            together[b, width:].tolist()
            == model.generate(torch.tensor([row]), **settings)[0, len(row) :].tolist()
        )
    model(
        ids_BT, attention_mask=mask_BT, labels=ids_BT.masked_fill(mask_BT == 0, -100)
    ).losses.sum().backward()
    padded = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    sum(
        model(torch.tensor([row]), labels=torch.tensor([row])).losses.sum() for row in rows
    ).backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(padded[key], parameter.grad)
    with pytest.raises(ValueError, match="padding between mems and tokens"):
        model(ids_BT, mems=out.mems, attention_mask=mask_BT)


def test_gradients_with_and_without_checkpointing_are_alike() -> None:
    model = load(GOLDEN / "hf_div2").train()
    ids_BT, mask_BT = (
        torch.tensor([[0, 0, 3, 150, 9], [5, 7, 9, 11, 13]]),
        torch.tensor([[0, 0, 1, 1, 1], [1] * 5]),
    )
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model.zero_grad()
        model(ids_BT, attention_mask=mask_BT, labels=ids_BT).loss.backward()
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name])


@pytest.mark.parametrize(
    ("num_beams", "length_penalty", "ngram"),
    [(n, penalty, 0) for n in (2, 5) for penalty in (1.0, 0.0, 2.0, -1.0)]
    + [(5, 1.0, 2), (5, 0.0, 1), (2, 2.0, 3)],
)
def test_our_beams_are_those_of_transformers(
    num_beams: int, length_penalty: float, ngram: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a token that ends a text, and where the search stops early."""
    monkeypatch.setattr(sampling, "Reader", Sliding)
    model, ours = load(GOLDEN / "hf_div2", dtype="float64"), convert(GOLDEN / "hf_div2")
    prompt = [3, 150, 5, 9]
    common = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "no_repeat_ngram_size": ngram,
    }
    likeliest = model(torch.tensor([prompt])).logits[0, -1].topk(12).indices.tolist()
    n_early = 0
    for end in (*likeliest, -1):
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=14, eos_token_id=end, pad_token_id=0, do_sample=False,
            num_return_sequences=num_beams, return_dict_in_generate=True, output_scores=True, **common,
        )  # fmt: skip
        found = beam_search(
            ours.model.double(), prompt, ours.context, length=14,
            has_ended=lambda ids, end=end: ids[-1] == end, **common,
        )  # fmt: skip
        n_early += len(found[0].ids) < 14
        theirs = [row[len(prompt) :].tolist() for row in out.sequences]
        theirs = [ids[: ids.index(end) + 1] if end in ids else ids for ids in theirs]
        assert [list(one.ids) for one in found] == theirs
        assert [one.score for one in found] == pytest.approx(
            out.sequences_scores.tolist(), rel=1e-6
        )
    assert n_early or length_penalty > 0


def test_the_pipeline_joins_prompt_and_continuation_and_pads_by_itself(tmp_path: Path) -> None:
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(198))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = txl.hf.TransfoXLTokenizer(vocab_file=str(tmp_path / "vocab.txt"))
    write = transformers.pipeline(
        "text-generation", model=load(GOLDEN / "hf_div2"), tokenizer=tokenizer
    )
    prompts = ["w3 w150", "w5", "w9 w70 w8 w33"]
    settings = {"max_new_tokens": 5, "do_sample": False}
    alone = [write(prompt, **settings)[0]["generated_text"] for prompt in prompts]
    assert [
        text.split()[: len(prompt.split())] for text, prompt in zip(alone, prompts, strict=True)
    ] == [prompt.split() for prompt in prompts]
    assert [row[0]["generated_text"] for row in write(prompts, batch_size=3, **settings)] == alone
    new = write(prompts[0], return_full_text=False, **settings)[0]["generated_text"]
    assert prompts[0] + new == alone[0]


def test_sampling_and_beams() -> None:
    model, prompt_BT = load(GOLDEN / "hf_div2"), torch.tensor([[3, 150, 5, 9]])

    def write(**settings: Any) -> Tensor:
        torch.manual_seed(1)
        return model.generate(prompt_BT, max_new_tokens=12, **GREEDY | settings)

    assert torch.equal(write(do_sample=True, top_k=1), write())
    sampled = {"do_sample": True, "top_p": 0.9, "num_return_sequences": 3}
    assert write(**sampled).shape == (3, 16)
    assert torch.equal(write(**sampled), write(**sampled))
    # same_length: the zeros of the first memory are out of sight in both
    assert torch.equal(write(num_beams=3), write(num_beams=3, use_cache=False))


def compare(model: Any, figures: Any) -> None:
    """The model computes what transformers 4.35.2 did."""
    ids, mems = torch.from_numpy(figures["ids"]), None
    for i, segment in enumerate(ids.split(7, dim=1)):
        with torch.no_grad():
            out = model(segment, mems=mems, output_hidden_states=True, output_attentions=True)
        mems = out.mems
        found = {"scores": out.prediction_scores, "mems": torch.stack(out.mems)}
        found |= {
            "hidden": torch.stack(out.hidden_states),
            "attention": torch.stack(out.attentions),
        }
        for key, tensor in found.items():
            torch.testing.assert_close(
                tensor, torch.from_numpy(figures[f"{key}{i}"]), rtol=1e-4, atol=2e-5
            )
    settings = {"do_sample": False, "pad_token_id": 0}
    greedy = model.generate(ids[:, :5], max_new_tokens=30, **settings)
    assert greedy.tolist() == figures["greedy"].tolist()
    beams = model.generate(ids[:, :5], max_new_tokens=9, num_beams=3, eos_token_id=-1, **settings)
    assert beams.tolist() == figures["beams"].tolist()
    loss = model(ids[:1], labels=ids[:1]).loss.detach()
    assert float(loss) == pytest.approx(float(figures["loss"]), rel=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_transformers_4_saved_has_its_figures_and_back(
    made: Path, tmp_path: Path, name: str
) -> None:
    model = load(made / name)
    compare(model, np.load(made / name / "figures.npz"))
    model.save_pretrained(tmp_path)
    transformers_4("read", tmp_path)
    there, here = np.load(made / name / "figures.npz"), np.load(tmp_path / "figures.npz")
    assert all(np.array_equal(there[key], here[key]) for key in there.files)


@pytest.mark.parametrize("name", NAMES)
def test_golden_folders_saved_anew_are_read_by_transformers_4(name: str, tmp_path: Path) -> None:
    model = load(GOLDEN / name)
    model.save_pretrained(tmp_path)
    transformers_4("read", tmp_path)
    compare(model, np.load(tmp_path / "figures.npz"))
    weights, expected = (
        convert(tmp_path).model.state_dict(),
        convert(GOLDEN / name).model.state_dict(),
    )
    assert all(torch.equal(weights[key], tensor) for key, tensor in expected.items())


def test_gradients_are_those_of_our_model(made: Path) -> None:
    model, ours = load(made / "untied").eval(), convert(made / "untied")
    ids_BT = torch.tensor([[3, 40, 5, 9, 33]])
    model(ids_BT, labels=ids_BT).loss.backward()
    memory = ZeroMemory(ours.model, ours.context.mem_len).fresh_memory(1)
    hidden_BTD = ours.model(ids_BT, memory, ours.context).hidden_BTD
    ours.model.softmax.nll(hidden_BTD[:, :-1], ids_BT[:, 1:]).mean().backward()
    attn = ours.model.layers[1].attn
    qkv = torch.cat([net.weight.grad for net in (attn.q_net, attn.k_net, attn.v_net)])
    theirs = dict(model.named_parameters())
    torch.testing.assert_close(theirs["transformer.layers.1.dec_attn.qkv_net.weight"].grad, qkv)
    torch.testing.assert_close(
        theirs["crit.cluster_weight"].grad, ours.model.softmax.cluster_weight.grad
    )
    assert all(parameter.grad is not None for parameter in theirs.values())


def test_fresh_models_train_and_are_restored(tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(GOLDEN / "hf_div2")
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert (
        0.01
        < float(model.transformer.word_emb.emb_layers.get_submodule("0").weight.detach().std())
        < 0.03
    )
    weights = dict(model.named_parameters(remove_duplicate=False))
    assert (
        weights["crit.out_layers.1.weight"] is weights["transformer.word_emb.emb_layers.1.weight"]
    )
    ids_BT = torch.arange(40).view(2, 20) % 17
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = model.train()(ids_BT, labels=ids_BT).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    model.save_pretrained(tmp_path)
    again, eval_model = load(tmp_path), model.eval()
    assert torch.equal(again(ids_BT).logits, eval_model(ids_BT).logits)


def test_one_mems_too_few_is_said() -> None:
    model, ids_BT = load(GOLDEN / "hf_div2"), torch.tensor([[3, 150, 5, 9]])
    mems = model(ids_BT).mems
    with pytest.raises(
        ValueError, match=f"{len(mems) - 1} mems: must be {len(mems)}, one of each layer"
    ):
        model(ids_BT, mems=mems[:-1])


def test_a_classifier(made: Path, tmp_path: Path) -> None:
    classify = transformers.AutoModelForSequenceClassification.from_pretrained
    model = classify(made / "classifier")
    ids_BT = torch.tensor([[7, 8, 9, 5, 5], [1, 2, 3, 4, 5]])
    out = model(ids_BT, labels=torch.tensor([2, 0]))
    theirs = torch.from_numpy(np.load(made / "classifier" / "logits.npy"))
    torch.testing.assert_close(out.logits, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        out.loss, torch.nn.functional.cross_entropy(theirs, torch.tensor([2, 0]))
    )
    model.save_pretrained(tmp_path)
    assert torch.equal(classify(tmp_path)(ids_BT).logits, out.logits)
    base = transformers.AutoModel.from_pretrained(made / "classifier")
    assert base(ids_BT).last_hidden_state.shape == (2, 5, 16)


@pytest.mark.parametrize("kind", ["CausalLM", "SequenceClassification"])
def test_of_a_mask_that_is_longer_than_the_segment_the_last_columns_count(kind: str) -> None:
    torch.manual_seed(0)
    auto, labels = getattr(transformers, f"AutoModelFor{kind}"), kind == "CausalLM"
    model = auto.from_config(transformers.AutoConfig.from_pretrained(GOLDEN / "hf_div2")).eval()
    ids_BT, mask_BT = (
        torch.tensor([[0, 0, 3, 7, 9], [5, 7, 9, 0, 0]]),
        torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]),
    )
    asked: dict[str, Any] = {"labels": ids_BT} if labels else {}
    longer_BT = torch.nn.functional.pad(mask_BT, (3, 0), value=1)
    long, exact = (model(ids_BT, attention_mask=mask, **asked) for mask in (longer_BT, mask_BT))
    assert torch.equal(
        long.losses if labels else long.logits, exact.losses if labels else exact.logits
    )


def test_the_tokenizer_keeps_the_old_rules(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    expected = json.loads((made / "tokenizer" / "tokens.json").read_text())
    folder = shutil.copytree(GOLDEN / "hf_div2", tmp_path / "model")
    shutil.copy(made / "vocab.txt", folder)
    for tokenizer in (
        transformers.AutoTokenizer.from_pretrained(folder),
        txl.hf.TransfoXLTokenizer.from_pretrained(made / "tokenizer"),  # from its vocab.pkl
    ):
        assert [tokenizer.tokenize(sentence) for sentence in SENTENCES] == expected["words"]
        assert tokenizer(SENTENCES)["input_ids"] == expected["ids"]
        assert [tokenizer.decode(ids) for ids in expected["ids"]] == expected["texts"]
    tokenizer.save_pretrained(folder)
    load(GOLDEN / "hf_div2").save_pretrained(folder)
    transformers_4("read", folder)
    again = json.loads((folder / "tokens.json").read_text())
    assert again == expected
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1)


def test_a_model_converted_to_hugging_faces_layout_is_read_by_both(
    made: Path, tmp_path: Path
) -> None:
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(198))]
    source = shutil.copytree(GOLDEN / "hf_div2", tmp_path / "source")
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    run, folder = tmp_path / "run", tmp_path / "exported"
    convert_main([str(source), str(run)])
    convert_main([str(run), str(folder), "--to", "huggingface"])
    transformers_4("read", folder)
    compare(load(folder), np.load(folder / "figures.npz"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("w3 w7 nobody <eos>")["input_ids"] == [5, 9, 1, 0]
    there = json.loads((folder / "tokens.json").read_text())
    assert [tokenizer.tokenize(sentence) for sentence in SENTENCES] == there["words"]


def test_words_between_white_space_are_read_alike_by_both(tmp_path: Path) -> None:
    words = ["<eos>", "<unk>", "the", "cat,", "(sat).", "a-b", "\u6211\u4eec\u8d70\u3002"]
    record = {"data": {"data": "x", "dataset": "text"}}
    model = TransformerXL(
        ModelConfig(n_token=len(words), n_layer=2, n_head=2, d_head=8, d_model=16, d_inner=16)
    )
    write_huggingface(
        LanguageModel(model, Context(tgt_len=8, mem_len=8), Vocab(words), record), tmp_path
    )
    lm, tokenizer = txl.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [
        "the cat, (sat).\n\nthe a-b",
        "\u6211\u4eec\u8d70\u3002 the<unk>, <eos>\t<unk>\r\nthe ( sat )",
    ]
    assert [tokenizer(text)["input_ids"] for text in texts] == [lm.encode(text) for text in texts]
    padded = tokenizer(["the", "the cat, (sat)."], padding=True)
    assert (padded["input_ids"][0], padded["attention_mask"][0]) == ([0, 0, 2], [0, 0, 1])
    write = transformers.pipeline("text-generation", model=str(tmp_path))
    (said,) = write("the cat,", max_new_tokens=3, do_sample=False)
    assert lm.encode(said["generated_text"])[:2] == [2, 3]
    assert said["generated_text"].count(" ") == 4
    transformers_4("read", tmp_path)
    there = json.loads((tmp_path / "tokens.json").read_text())
    assert there["ids"] == [tokenizer(sentence)["input_ids"] for sentence in SENTENCES]


def test_without_sacremoses_text_is_split_as_wikitext_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacremoses", None)
    (tmp_path / "vocab.txt").write_text("<eos>\n<unk>\na\n@-@\nb\n1\n@.@\n5\n")
    tokenizer = txl.hf.TransfoXLTokenizer(vocab_file=str(tmp_path / "vocab.txt"))
    ids = tokenizer("a-b 1.5 c <eos>")["input_ids"]
    assert ids == [2, 3, 4, 5, 6, 7, 1, 0]
    assert tokenizer.decode(ids) == "a @-@ b 1.5 <unk> <eos>"


def test_a_configuration_takes_the_names_of_2019(tmp_path: Path) -> None:
    """Those that transformers maps to its own for every model, from Python and from a config.json."""
    asked = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "n_token": 99}
    for config in (
        txl.hf.TransfoXLConfig(**asked),
        transformers.AutoConfig.for_model("transfo-xl", **asked),
    ):
        assert (config.d_model, config.n_layer, config.n_head, config.vocab_size) == (64, 2, 4, 99)
        assert config.bos_token_id is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "transfo-xl", **asked}))
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (read.d_model, read.hidden_size, read.vocab_size) == (64, 64, 99)
