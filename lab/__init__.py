"""The laboratory: what is measured with txl besides perplexity, and studies of many trainings. Its
programs are started as modules, `python -m lab.studies FILE`; nothing of txl imports it.
"""

import sys

from txl.programs.launch import prepare

if not any(
    word.startswith("lab.benchmarks") for word in sys.orig_argv
):  # which start as what they compare with
    prepare()  # before PyTorch is imported
