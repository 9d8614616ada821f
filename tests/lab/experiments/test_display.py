from io import StringIO

from rich.console import Console

from openfate_lab.experiments.display import draw_panels, make_tables, score_cells


def printed(cells):
    text = StringIO()
    Console(file=text, width=100).print(*make_tables(cells))
    return text.getvalue()


def test_cells_become_tables_in_order_of_appearance():
    text = printed([("t", "b", "2", "x"), ("t", "a", "1", "y"), ("u", "b", "2", "z")])
    t, u = text.split(" u ")
    assert t.index(" b ") < t.index(" a ") and t.index(" 2 ") < t.index(" 1 ")
    assert t.count("-") >= 2  # what is missing
    assert "z" in u and "x" not in u


def test_scores_are_a_table_a_data_set_and_streams_have_no_share():
    row = {"dataset": "d", "metric": "auc", "n_trials": 2, "std": 0.1}
    text = printed(
        score_cells(
            [
                row | {"observed": 0.5, "method": "fate", "mean": 0.9},
                row | {"observed": 0.3, "method": "fate", "mean": 0.8},
            ]
        )
    )
    assert text.index("30% observed") < text.index("50% observed") and "0.900 ± 0.100" in text
    one = row | {"observed": None, "method": "drop", "mean": 0.5, "n_trials": 1}
    assert "stream" in printed(score_cells([one])) and "one trial" in printed(score_cells([one]))


def test_panels_fill_a_grid_and_share_one_legend():
    figure = draw_panels([1, 2, 3, 4], lambda axis, n: axis.plot([0, n], label="line"), columns=3)
    assert (
        len(figure.axes) == 6 and [axis.axison for axis in figure.axes] == [True] * 4 + [False] * 2
    )
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["line"]
