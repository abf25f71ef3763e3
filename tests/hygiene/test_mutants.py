"""The list of faults that the suite must notice stays applicable; `python -m tests.mutants` applies them."""

import ast

from tests.mutants.__main__ import ROOT, faulty, mutants

N_WITHOUT = 7
"""Files with functions that no fault is of: those of txl/hf, whose tests need transformers."""


def test_every_fault_can_be_applied() -> None:
    assert len(mutants()) >= 180
    for mutant in mutants():
        text = (ROOT / mutant["file"]).read_text()
        compiled = compile(faulty(text, mutant), mutant["file"], "exec")
        assert compiled.co_code is not None
        assert all((ROOT / name).exists() for name in mutant["tests"].split())


def test_a_new_file_has_a_fault() -> None:
    tried = {mutant["file"] for mutant in mutants()}
    files = [path for room in ("txl", "lab") for path in (ROOT / room).rglob("*.py")]
    files = [p for p in files if not {"tests", "benchmarks"} & set(p.relative_to(ROOT).parts)]
    with_logic = {
        str(p.relative_to(ROOT))
        for p in files
        if any(map(is_function, ast.walk(ast.parse(p.read_text()))))
    }
    assert tried <= {str(path.relative_to(ROOT)) for path in files}
    assert len(with_logic - tried) <= N_WITHOUT, sorted(with_logic - tried)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef)
