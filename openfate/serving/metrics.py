"""Metrics: counts and latencies of a service, in Prometheus' text format and for its page."""

from __future__ import annotations

import bisect
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping

_RATE = 0.001  # of a moving mean
_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds


class Mean:
    """The mean of numbers that come one by one: of all of them, and of the last thousand or so.

    Examples
    --------
    >>> mean = Mean()
    >>> for number in [0.0] * 9000 + [1.0] * 3000:
    ...     mean.add(number)
    >>> round(mean.overall, 2), round(mean.recent, 2), round(mean.drift, 2)
    (0.25, 0.95, 0.7)
    """

    def __init__(self) -> None:
        self._count, self._total, self._weight, self._moving = 0, 0.0, 0.0, 0.0

    def add(self, number: float) -> None:
        """Take one in."""
        self._count, self._total = self._count + 1, self._total + number
        self._moving += _RATE * (number - self._moving)
        self._weight += _RATE * (1 - self._weight)  # WHY: it begins at 0, which nobody told

    @property
    def overall(self) -> float:
        """Of all; nan for none."""
        return self._total / self._count if self._count else math.nan

    @property
    def recent(self) -> float:
        """Of the last ones; nan for none."""
        return self._moving / self._weight if self._weight else math.nan

    @property
    def drift(self) -> float:
        """How far the last ones are from all of them."""
        return self.recent - self.overall


class Metrics:
    """What a service has done so far.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.answered("/predict", 200, 0.002)
    >>> 'openfate_requests_total{path="/predict",status="200"} 1' in metrics.expose({})
    True
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.counts: Counter[str] = Counter()  # rows, cells, new cells, ...
        self._slots: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._recent: deque[tuple[float, float]] = deque(maxlen=5000)  # of predictions

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[path, status] += 1
        slots = self._slots.setdefault(path, [0] * (len(_BOUNDS) + 1))
        slots[bisect.bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[path] += seconds  # type: ignore[assignment]
        if path == "/predict":
            self._recent.append((time.monotonic(), seconds))

    def now(self, within: float = 5.0) -> dict[str, float]:
        """Predictions a second and their latency, of the last seconds."""
        now, kept = time.monotonic(), list(self._recent)
        if len(kept) == self._recent.maxlen:  # WHY: of many, these are the last ones alone
            within = min(within, now - kept[0][0])
        recent = sorted(took for at, took in kept if at >= now - within)
        if not recent:
            return {"rate": 0.0, "p50_ms": 0.0, "p99_ms": 0.0}
        p50, p99 = (1e3 * recent[int(share * (len(recent) - 1))] for share in (0.5, 0.99))
        return {"rate": len(recent) / within, "p50_ms": p50, "p99_ms": p99}

    def expose(self, gauges: Mapping[str, float | Mapping[str, float | None] | None]) -> str:
        """All as text: what was counted, and gauges of this moment; a mapping has a label."""
        lines = ["# TYPE openfate_requests_total counter"]
        lines += [
            f'openfate_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        lines.append("# TYPE openfate_request_seconds histogram")
        for path, slots in sorted(self._slots.items()):
            total = 0
            for bound, count in zip((*map(str, _BOUNDS), "+Inf"), slots, strict=True):
                total += count
                lines.append(
                    f'openfate_request_seconds_bucket{{path="{path}",le="{bound}"}} {total}'
                )
            lines.append(f'openfate_request_seconds_sum{{path="{path}"}} {self._seconds[path]}')
            lines.append(f'openfate_request_seconds_count{{path="{path}"}} {total}')
        for name, count in sorted(self.counts.items()):
            lines += [f"# TYPE openfate_{name}_total counter", f"openfate_{name}_total {count}"]
        for name, value in gauges.items():
            lines += _gauge(name, value)
        return "\n".join(lines) + "\n"


def _gauge(name: str, value: float | Mapping[str, float | None] | None) -> Iterable[str]:
    parts = value if isinstance(value, Mapping) else {"": value}
    shown = {label: one for label, one in parts.items() if one is not None and math.isfinite(one)}
    if not shown:
        return
    yield f"# TYPE openfate_{name} gauge"
    for label, one in shown.items():
        yield f"openfate_{name}{label} {float(one)!r}"
