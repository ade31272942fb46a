"""Chi-square goodness of fit, so that the tests need no SciPy."""

from __future__ import annotations

import math

import numpy as np


def survival(statistic: float, degrees: int) -> float:
    """Returns P(X >= statistic) for a chi-square variable X.

    This is the regularised upper incomplete gamma function Q(degrees / 2, statistic / 2): a power
    series below the mean, a continued fraction (modified Lentz) above it.
    """
    a, x = degrees / 2.0, statistic / 2.0
    if x <= 0.0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        return 1.0 - scale * _lower_series(a, x)
    return scale * _upper_fraction(a, x)


def _lower_series(a: float, x: float) -> float:
    term = total = 1.0 / a
    k = a
    while term > total * 1e-17:
        k += 1.0
        term *= x / k
        total += term
    return total


def _upper_fraction(a: float, x: float) -> float:
    b = x + 1.0 - a
    c = 1e300
    d = 1.0 / b
    value = d
    for i in range(1, 10_000):
        numerator = -i * (i - a)
        b += 2.0
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        value *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return value


def fit_p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the p-value of the counts under the expected distribution.

    Cells expected fewer than 5 times are pooled. A count in a cell of probability 0 gives 0.
    """
    counts = np.asarray(counts, np.float64).ravel()
    probabilities = np.asarray(probabilities, np.float64).ravel()
    if np.any(counts[probabilities == 0.0] > 0):
        return 0.0
    expected = probabilities * counts.sum()
    rare = expected < 5.0
    expected = np.append(expected[~rare], expected[rare].sum())
    counts = np.append(counts[~rare], counts[rare].sum())
    used = expected > 0.0
    statistic = float(np.sum((counts[used] - expected[used]) ** 2 / expected[used]))
    degrees = int(np.count_nonzero(used)) - 1
    return survival(statistic, degrees) if degrees > 0 else 1.0
