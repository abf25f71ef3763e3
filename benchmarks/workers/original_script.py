"""Runs train.py or eval.py of kimiyoung/transformer-xl from a checkout, adapted as `original.load` does:

python -m benchmarks.workers.original_script FOLDER train.py FLAGS
"""

import os
import runpy
import sys
import warnings
from functools import partial
from pathlib import Path

import torch

from benchmarks.workers.original import load

if __name__ == "__main__":
    folder, script, *flags = sys.argv[1:]
    warnings.filterwarnings("ignore")
    sys.modules["mem_transformer"] = load(folder)
    torch.load = partial(torch.load, weights_only=False)  # it pickles whole modules
    sys.argv = [script, *flags]
    os.chdir(Path(folder) / "pytorch")  # it copies its own files
    sys.path.insert(0, os.getcwd())
    runpy.run_path(script, run_name="__main__")
