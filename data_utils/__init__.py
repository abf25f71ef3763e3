"""In a clone, `import data_utils` gives `txl.data_utils`: the same modules under another name, also of
`python -m data_utils.download`. A wheel has it as `txl.data_utils` alone."""

import importlib
import sys
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any


class _Same(MetaPathFinder, Loader):
    """Gives the module of txl.data_utils for one of data_utils."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}.") or find_spec(f"txl.{fullname}") is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"txl.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_spec(f"txl.{fullname}")
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        return spec.loader.get_code(spec.name)


sys.meta_path.insert(0, _Same())
sys.modules[__name__] = importlib.import_module("txl.data_utils")
