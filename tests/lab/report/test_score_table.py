import json
import re

from result_folders import summary_row, trial, write, write_run

from openfate_lab.report import build, render_page


def test_the_reading_counts_what_the_trials_say(results):
    write_run(results / "uci" / "default", 0.1)
    (section,) = (s for s in build([results]).sections if s.title == "uci/default")
    text = " ".join(section.tables[0].reading)
    assert "fate is above base in 2 of 2 cells, significantly in 2, and below in 0" in text
    assert "Best of 2 lines (ties count for each): fate in 2." in text
    assert "knn is above base in 0 of 2 cells, significantly in 0, and below in 0" in text


def test_the_best_is_bold_and_an_oracle_is_not(results):
    rows = [
        summary_row("a", 0.5, m, [s]) for m, s in (("fate", 0.7), ("base", 0.6), ("oracle", 0.9))
    ]
    write(results / "uci" / "default" / "summary.json", {"rows": rows})
    assert re.findall(r"<strong><data[^>]*>([^<]*)", render_page(build([results]))) == [".700"]


def test_trials_that_do_not_agree_with_the_summary_are_not_tested(results):
    write_run(results / "uci" / "default", 0.1)
    path = results / "uci" / "default" / "summary.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row["mean"] += 0.01
    write(path, content)
    (section,) = (s for s in build([results]).sections if s.title == "uci/default")
    assert "Not tested against base" in section.tables[0].legend


def test_variants_are_columns_and_the_papers_numbers_stand_below(results):
    scores = {"full": [0.91, 0.92, 0.93], "no_drop_edge": [0.81, 0.82, 0.83]}
    paper = {"full": 0.9345, "no_drop_edge": 0.9226}
    rows = [
        summary_row("gene", share, "fate", found, variant=variant, paper=paper[variant])
        for share in (0.3, 0.5)
        for variant, found in scores.items()
    ]
    for share in (0.3, 0.5):
        for seed in range(3):
            record = trial("gene", share, seed, {f"{v}/fate": s[seed] for v, s in scores.items()})
            write(results / "ablation" / "gene" / f"{share}" / f"{seed}" / "trial.json", record)
    notes = ["The paper does not state its share."]
    write(results / "ablation" / "summary.json", {"rows": rows, "notes": notes})
    (section,) = build([results]).sections
    (table,) = section.tables
    assert section.words == notes
    assert table.columns == ["observed", "full", "no_drop_edge"]
    assert [cell.text for cell in table.rows[0]] == ["30%", ".920", ".820▼"]
    assert [cell.text for cell in table.rows[1]] == ["30% (paper)", ".9345", ".9226"]
    assert table.legend.startswith("All lines: dataset gene, method fate. Bold")


def test_clicks_are_tested_split_by_split_and_log_loss_is_no_score(results):
    rows = []
    auc = {"base": [0.70, 0.71, 0.72], "fate": [0.72, 0.73, 0.74]}
    for split in ("T1", "overall"):
        for metric in ("auc", "log_loss"):
            for method, scores in auc.items():
                more = {"backbone": "nn", "variant": "k_shot", "split": split}
                rows.append(summary_row("avazu-sample", None, method, scores, metric, **more))
    for seed in range(3):
        found = {}
        for method, scores in auc.items():
            both = {"auc": scores[seed], "log_loss": scores[seed]}
            found[method] = {"metric": "auc", "score": scores[seed], "splits": {"T1": both}, **both}
        head = {"dataset": "avazu-sample", "backbone": "nn", "kind": "k_shot", "seed": seed}
        write(results / "ctr" / "a" / f"{seed}" / "trial.json", {**head, "results": found})
    write(results / "ctr" / "summary.json", {"rows": rows})
    (section,) = (s for s in build([results]).sections if s.title == "ctr")
    (table,) = section.tables
    assert table.columns == ["split", "metric", "base", "fate"]
    assert [cell.text for cell in table.rows[0]] == ["T1", "auc", ".7100", ".7300▲"]
    assert "fate is above base in 2 of 2 cells, significantly in 2" in table.reading[-1]
    assert [row[3].best for row in table.rows] == [True, False, True, False]


def test_measures_that_are_no_scores_are_lines_and_none_is_best(results):
    rows = [
        summary_row("gene", 0.5, method, [mean], metric, by_chance=0.5)
        for metric in ("agreement", "energy")
        for method, mean in (("fate", 0.3), ("oracle", 0.2))
    ]
    content = {"rows": rows, "bounds": [{"k": 2, "readings": {"printed": {"log10": 84.0}}}]}
    write(results / "map" / "summary.json", content)
    (section,) = build([results]).sections
    scores, bounds = section.tables
    assert scores.columns == ["metric", "fate", "oracle"]
    assert not any(cell.best for row in scores.rows for cell in row)
    assert scores.reading == []
    assert (bounds.title, bounds.columns) == ("bounds", ["k", "readings printed log10"])
