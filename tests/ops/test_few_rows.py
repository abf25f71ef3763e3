"""Few rows are multiplied another way, to the same result."""

import platform

import pytest
import torch
import torch.nn.functional as F

from txl.ops import few_rows, processor
from txl.ops import linear as module
from txl.ops.linear import Linear, linear, linear_in_part


@pytest.fixture(autouse=True)
def as_on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "REVERSED", True)
    monkeypatch.setattr(few_rows, "PAYS", 5 * 7)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (1, 3), (4,), (5,), (0,), ()], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_linear_map(shape: tuple[int, ...], bias: bool) -> None:
    module, x = Linear(7, 5, bias=bias), torch.randn(*shape, 7)
    expected = F.linear(x, module.weight, module.bias)
    with torch.no_grad():
        found = module(x)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module(x), expected, rtol=0, atol=0)


def test_part_of_a_table_is_cast_for_many_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAST_PAYS", 3)
    x, weight, bias = torch.randn(3, 7), torch.randn(5, 7), torch.randn(5)
    part = weight.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_in_part(x[:2], part, bias)
        assert linear_in_part(x, weight, bias).dtype == torch.bfloat16
        assert linear_in_part(x[:0], weight, bias).shape == (0, 5)
    torch.testing.assert_close(found, F.linear(x[:2], weight, bias))
    found.sum().backward()
    torch.testing.assert_close(part.grad, x[:2].sum(0).expand(5, 7))


def test_few_rows_go_the_other_way_only_where_no_gradient_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products = []
    plain = few_rows.product
    monkeypatch.setattr(few_rows, "product", lambda *args: products.append(None) or plain(*args))
    weight = torch.randn(5, 7)
    linear(torch.randn(2, 7), weight)
    with torch.no_grad():
        linear(torch.randn(few_rows.FEW + 1, 7), weight)
        linear(torch.randn(2, 7).double(), weight.double())
        linear(torch.randn(2, 7), weight[:4])  # too small to pay
        assert products == []
        linear(torch.randn(2, 7), weight)
        assert len(products) == 1
        for n_thread in (1, 2):  # of which one reads a row no faster that way
            monkeypatch.setattr(torch, "get_num_threads", lambda n=n_thread: n)
            linear(torch.randn(1, 7), weight)
            assert len(products) == n_thread
        monkeypatch.setattr(few_rows, "REVERSED", False)  # other processors
        linear(torch.randn(2, 7), weight)
        assert len(products) == 2


ZEN_4 = """
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 avx512f avx512_bf16
"""
SAPPHIRE_RAPIDS = ZEN_4.replace("AuthenticAMD", "GenuineIntel").replace("avx512_bf16", "amx_bf16")
ZEN_3 = ZEN_4.replace(" avx512f avx512_bf16", "")
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\n"


@pytest.mark.parametrize(
    ("cpuinfo", "is_restricted", "answers"),
    [
        (ZEN_4, False, (True, True, True)),
        (ZEN_4, True, (True, False, False)),
        (SAPPHIRE_RAPIDS, False, (False, True, True)),
        (ZEN_3, False, (True, False, False)),
        (ARM, False, (False, False, False)),
        ("", False, (False, False, False)),
    ],
)
def test_the_processor_is_what_linux_says_it_is(
    cpuinfo: str, is_restricted: bool, answers: tuple[bool, bool, bool]
) -> None:
    name, *found = processor.described(cpuinfo, is_restricted=is_restricted)
    assert tuple(found) == answers
    assert name == ("AMD EPYC 9R14" if "model name" in cpuinfo else platform.machine())
