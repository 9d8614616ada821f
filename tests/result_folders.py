"""Folders of results with a known answer."""

import json


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def trial(dataset, observed, seed, scores, metric="accuracy", **more):
    results = {m: {"metric": metric, "score": s, "seconds": 1.0} for m, s in scores.items()}
    head = {"dataset": dataset, "observed": observed, "seed": seed, **more}
    return {**head, "settings": {"epochs": 2}, "versions": {"torch": "2"}, "results": results}


def summary_row(dataset, observed, method, scores, metric="accuracy", **more):
    mean = sum(scores) / len(scores)
    row = {"dataset": dataset, "observed": observed, "method": method, "metric": metric}
    return {**row, "mean": mean, "std": 0.01, "n_trials": len(scores), "seconds": 1.0, **more}


def write_run(folder, lead, *, metric="accuracy", dataset="gene", noise=0.001):
    """Four splits at two shares; FATE leads the baselines by `lead`, give or take the noise."""
    rows = []
    for observed in (0.3, 0.5):
        base = [0.5 + 0.01 * seed for seed in range(4)]
        fate = [score + lead + noise * (-1) ** seed for seed, score in enumerate(base)]
        methods = {"fate": fate, **dict.fromkeys(("base", "average", "knn", "pooling"), base)}
        for seed in range(4):
            scores = {method: found[seed] for method, found in methods.items()}
            path = folder / dataset / f"observed-{observed}" / f"seed-{seed}" / "trial.json"
            write(path, trial(dataset, observed, seed, scores, metric))
        rows += [summary_row(dataset, observed, m, s, metric) for m, s in methods.items()]
    write(folder / "summary.json", {"command": "openfate experiment uci", "rows": rows})
