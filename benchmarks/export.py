"""How far are exported files from their agents? One file for each kind of network, compared on 1,000 observations.

    python benchmarks/export.py [--sample] [--only NAME ...]

The kinds are those of tests/exporting. The output is the table of docs/export.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.exporting.conftest import CASES, SAMPLING, make_agent

from rollmill.exporting.export import export_agent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="sample actions")
    parser.add_argument("--only", nargs="+", help="only these kinds")
    arguments = parser.parse_args()
    print("| Network | ONNX: other choices | largest difference | torch: other choices | largest difference |")
    print("|---|---|---|---|---|")
    for name in arguments.only or (SAMPLING if arguments.sample else CASES):
        cells = []
        with tempfile.TemporaryDirectory() as folder:
            for format in ("onnx", "torch"):
                path = Path(folder) / "agent"
                compared = export_agent(make_agent(CASES[name]), path, format, sample=arguments.sample).comparison
                if compared is None:
                    print("onnxruntime is not installed: pip install onnxruntime", file=sys.stderr)
                    return 1
                cells += [str(compared.differing), f"{compared.difference:.1e}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
