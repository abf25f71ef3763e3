"""Test-time adaptation: predictors for `txl.evaluation.score.evaluate`.

DynamicEvaluation   gradient steps on the evaluated text                   Krause et al. 2018, 2019
ContinuousCache     recent words, retrieved by similar hidden states       Grave et al. 2017
NearestNeighbours   words of the training text, retrieved the same way     Khandelwal et al. 2020
"""

from txl.evaluation.test_time.additions import Additions
from txl.evaluation.test_time.cache import ContinuousCache
from txl.evaluation.test_time.dynamic import DynamicEvaluation, gradient_statistics
from txl.evaluation.test_time.knn import NearestNeighbours
from txl.evaluation.test_time.mixture import Mixture
from txl.evaluation.test_time.prepared import TrainingText, prepared
