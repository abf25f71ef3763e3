"""Test-time adaptation: each class is a predictor that `txl.evaluation.score.evaluate` scores.

DynamicEvaluation   the weights follow the text                        Krause et al. 2018, 2019
ContinuousCache     the last words, found by similar hidden states     Grave et al. 2017
NearestNeighbours   the training text, found likewise                  Khandelwal et al. 2020
"""

from txl.evaluation.test_time.additions import Additions
from txl.evaluation.test_time.cache import ContinuousCache
from txl.evaluation.test_time.dynamic import DynamicEvaluation, gradient_statistics
from txl.evaluation.test_time.knn import NearestNeighbours
from txl.evaluation.test_time.mixture import Mixture
from txl.evaluation.test_time.prepared import TrainingText, prepared

__all__ = [
    "Additions",
    "ContinuousCache",
    "DynamicEvaluation",
    "Mixture",
    "NearestNeighbours",
    "TrainingText",
    "gradient_statistics",
    "prepared",
]
