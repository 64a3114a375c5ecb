"""Metrics of validation outputs."""

import pytest

from jformer.config import Config
from jformer.evaluation.scorer import Validation, bleu, chrf
from jformer.evaluation.scores import score
from tests.evaluation.noise import sentences, worsened

REFERENCE = sentences(61)
OUTPUT = worsened(REFERENCE, 0.3)


def validation(outputs, references, **options):
    return Validation(outputs, outputs, references, None, Config(), **options)


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_a_metric_of_validation_is_that_of_a_test_set(metric):
    found = metric(validation(OUTPUT, REFERENCE))
    assert found == score(OUTPUT, [REFERENCE], "de")[metric.__name__]
