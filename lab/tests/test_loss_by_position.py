"""Loss by position: the bins sum to what the evaluation counted, whatever it is cut into."""

from pathlib import Path
from shlex import quote

import numpy as np
import pytest

from lab.measures.loss_by_position import BinnedLoss, losses_by_place
from tests.cli.conftest import Here, Trained
from tests.cli.test_training import of_articles
from tests.laws.conftest import build
from tests.measures.test_token_losses import CONTEXTS, IDS, nats_by_the_book, watched
from txl import Context

__all__ = ["of_articles"]
STARTS = np.array([20, 21, 90])


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_each_bin_is_a_sum_over_a_plain_loop(context: Context) -> None:
    model = build("pre_lnorm_adaptive", n_layer=2)
    tables = losses_by_place(watched(model, context), STARTS)
    nats = nats_by_the_book(model, context)
    position = {place: (place - 1) % context.tgt_len for place in nats}
    distance = {
        place: place - max(start for start in (0, *STARTS) if start <= place) for place in nats
    }
    assert tables.keys() == {"position", "distance"}
    for name, value in {"position": position, "distance": distance}.items():
        assert sum(tables[name].tokens_K) == len(IDS) - 1
        assert sum(tables[name].nats_K) == pytest.approx(sum(nats.values()), rel=1e-6)
        for row in tables[name].as_dicts():
            inside = [place for place in nats if row["from"] <= value[place] <= row["to"]]
            assert row["tokens"] == len(inside)
            assert row["nats"] == pytest.approx(sum(nats[place] for place in inside), rel=1e-6)


def test_a_text_without_documents_has_no_table_by_distance() -> None:
    losses = watched(build("plain"), CONTEXTS[0])
    assert losses_by_place(losses, None).keys() == {"position"}


def test_bins_without_tokens_are_not_told() -> None:
    assert BinnedLoss([0, 1, 2, 5], [0.0, 3.0, 4.0], [0, 2, 4]).as_dicts() == [
        {"from": 1, "to": 1, "tokens": 2, "nats": 3.0, "nats_per_token": 1.5},
        {"from": 2, "to": 4, "tokens": 4, "nats": 4.0, "nats_per_token": 1.0},
    ]


def test_tables_stand_in_the_rows_below_the_table_and_in_a_picture(here: Here) -> None:
    result = here.result(
        "loss_by_position --mem_len 0 4 --split test --pictures seen --cache_size 9"
    )
    for row in result["rows"]:
        assert ("loss_by_position" in row) == (not row["added"])
        bins = row.get("loss_by_position", [row])
        assert sum(one["nats"] for one in bins) == pytest.approx(row["nats"], rel=1e-9)
    assert sorted(path.name for path in Path("seen").iterdir()) == ["context.png", "position.png"]
    assert "test, tgt_len 8, mem_len 4: position in the segment" in result["out"]
    assert "no headings like '= Title ='" in result["out"]


def test_tokens_late_in_their_segments_have_no_losses_by_position(here: Here) -> None:
    assert "--borders aside: " in here.refused("loss_by_position --borders aside")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "flags", ["--mem_len 0 6", "--reset never --convention original", "--convention nvidia"]
)
def test_losses_by_position_sum_to_the_row_under_every_rule(
    here: Here, of_articles: Trained, flags: str
) -> None:
    line = f"loss_by_position --work_dir {quote(str(of_articles.run))} --data {quote(str(of_articles.text))}"
    for row in here.rows(f"{line} --batch_size 2 --mem_len 6 {flags}"):
        for name in ("loss_by_position", "loss_by_distance"):
            assert sum(one["tokens"] for one in row[name]) == row["tokens"]
            assert sum(one["nats"] for one in row[name]) == pytest.approx(row["nats"], rel=1e-9)
        assert row["loss_by_position"][-1]["to"] == 7
