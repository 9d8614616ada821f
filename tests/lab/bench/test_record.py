from openfate_lab.bench import record as bench_record


def test_the_command_is_kept_without_the_machine_s_folders(monkeypatch):
    words = [
        "/opt/x/openfate_lab/bench/__main__.py",
        "train",
        "--out",
        "/home/me/a b.json",
        "--json",
    ]
    monkeypatch.setattr("sys.argv", words)
    assert (
        bench_record.typed_command() == "python -m openfate_lab.bench train --out 'a b.json' --json"
    )
    monkeypatch.setattr("sys.argv", ["/opt/bin/openfate", "bench", "train"])
    assert bench_record.typed_command() == "openfate bench train"
    monkeypatch.setattr("sys.argv", ["benchmarks/gpu_engine.py", "OUT.json"])
    assert bench_record.typed_command() == "python benchmarks/gpu_engine.py OUT.json"


def test_a_copy_without_git_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("OPENFATE_COMMIT", "abc123")
    monkeypatch.setattr(bench_record, "_commit_of_checkout", lambda: None)
    assert bench_record.about("cpu")["commit"] == "abc123"
    monkeypatch.setattr(bench_record, "_commit_of_checkout", lambda: "of git")
    assert bench_record.about("cpu")["commit"] == "of git"
    monkeypatch.setattr(bench_record, "_commit_of_checkout", lambda: None)
    monkeypatch.delenv("OPENFATE_COMMIT")
    assert bench_record.about("cpu")["commit"] is None
