"""The list of faults that the suite must notice stays applicable; `python -m tests.mutants` applies them."""

from tests.mutants.__main__ import ROOT, faulty, mutants


def test_every_fault_can_be_applied() -> None:
    assert len(mutants()) >= 145
    for mutant in mutants():
        text = (ROOT / mutant["file"]).read_text()
        compiled = compile(faulty(text, mutant), mutant["file"], "exec")
        assert compiled.co_code is not None
        assert all((ROOT / name).exists() for name in mutant["tests"].split())
