"""Scripts outside of the package: what they take from it exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_SCRIPTS = sorted(
    path for folder in ("examples", "benchmarks", "docs", "release") for path in _ROOT.glob(f"{folder}/**/*.py")
)


def _exists(module: str, name: str) -> bool:
    """Whether a module has a name, or a package a module of this name."""
    found = importlib.import_module(module)
    is_package = hasattr(found, "__path__")
    return hasattr(found, name) or (is_package and importlib.util.find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_every_name_that_a_script_takes_exists(script: Path) -> None:
    taken: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            taken += [(node.module, name.name) for name in node.names]
        elif isinstance(node, ast.Import):
            taken += [(module, name) for module, _, name in (each.name.rpartition(".") for each in node.names)]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rollmill":
            taken.append(("rollmill", node.attr))
    ours = [(module, name) for module, name in taken if module.partition(".")[0] == "rollmill"]
    assert [f"{module}.{name}" for module, name in ours if not _exists(module, name)] == []
