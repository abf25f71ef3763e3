"""What can be added to a trained model while it reads a text: each is a predictor that `txl.evaluate.evaluate` scores.

DynamicEvaluation   the weights follow the text                        Krause et al. 2018, 2019
ContinuousCache     the last words, found by similar hidden states     Grave et al. 2017
NearestNeighbours   the training text, found likewise                  Khandelwal et al. 2020
"""

from txl.testtime.additions import Additions
from txl.testtime.cache import ContinuousCache
from txl.testtime.dynamic import DynamicEvaluation, gradient_statistics
from txl.testtime.knn import NearestNeighbours
from txl.testtime.mixture import Mixture
from txl.testtime.prepared import TrainingText, prepared

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
