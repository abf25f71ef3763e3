"""The laboratory: what is measured with txl besides perplexity, and studies of many trainings. Its
programs are started as modules, `python -m lab.studies FILE`; nothing of txl imports it.
"""

from txl.programs.launch import prepare

prepare()  # before PyTorch is imported
