import re
from pathlib import Path

from openfate import training
from openfate_lab.bench.parts import part_of


def test_every_kernel_of_ours_is_in_the_part_of_its_file():
    files = {
        "mlp_forward.py": {"network"},
        "mlp_backward.py": {"network"},
        "sage_kernels.py": {"sums"},
        "kernels.py": {"sort", "sums"},
        "adam.py": {"optimizer"},
    }
    fused = Path(training.__file__).parent / "fused"
    having = {path.name for path in fused.glob("*.py") if "\n@jit\n" in path.read_text()}
    assert having == set(files)
    helpers = {"drop", "centred", "pair", "tf32", "mix_bits", "keys", "random_bits", "chunks_of"}
    for file, parts in files.items():
        text = (fused / file).read_text()
        found = set(re.findall(r"^@jit\ndef (\w+)", text, re.MULTILINE)) - helpers
        kernels = {name for name in found if name.endswith("_kernel") or not name.startswith("_")}
        assert kernels and {part_of(name).split(",")[0] for name in kernels} == parts, file
