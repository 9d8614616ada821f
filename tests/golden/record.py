"""Record or check the frozen scores: `python tests/golden/record.py [--check] [CASE ...]`.

New cases are added to scores.json.  One that was there and differs is a change of behaviour: it is
written only with `--changed REASON`, and the reason is kept beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import command_cases  # noqa: F401  they register themselves
import estimator_cases  # noqa: F401
import experiment_cases  # noqa: F401
from frozen import CASES, SCORES, computed, differences, dump, is_missing_data, machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="names, or their beginnings; all by default")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--changed", metavar="REASON", help="why scores may differ from now on")
    asked = parser.parse_args()
    names = [name for name in CASES if name.startswith(tuple(asked.cases) or "")]
    content = json.loads(SCORES.read_text()) if SCORES.exists() else {}
    content = {"cases": {}, "machine": machine(), **content}
    n_bad = 0
    for name in names:
        if is_missing_data(name):
            print(f"{name}: skipped, OPENFATE_DATA is not set")
            continue
        started = time.perf_counter()
        now = computed(name)
        seconds = time.perf_counter() - started
        entry = content["cases"].get(name)
        found = [] if entry is None else list(differences(entry["scores"], now))
        n_bad += bool(found) or (entry is None and asked.check)
        if entry is None:
            content["cases"][name] = {"scores": now}
        elif found and asked.changed:
            content["cases"][name] = {"changed": asked.changed, "scores": now}
        word = "new" if entry is None else f"{len(found)} differ" if found else "same"
        print(f"{name}: {word} ({seconds:.1f} s)", flush=True)
        print("".join(f"  {line}\n" for line in found[:5]), end="")
    if not asked.check:
        if not n_bad or asked.changed:
            content["machine"] = content["machine"] if asked.cases else machine()
        SCORES.write_text(dump(content))
    return 1 if n_bad and not asked.changed else 0


if __name__ == "__main__":
    sys.exit(main())
