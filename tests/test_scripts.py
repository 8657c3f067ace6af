"""Scripts outside of the package: what they take from it exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

import rollmill

_ROOT = Path(__file__).resolve().parents[1]
_SCRIPTS = sorted(
    path for folder in ("examples", "benchmarks", "docs", "release") for path in _ROOT.glob(f"{folder}/**/*.py")
)


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_every_name_that_a_script_imports_exists(script: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rollmill":
            assert node.module is not None
            module = importlib.import_module(node.module)
            for name in node.names:
                is_module = (
                    importlib.util.find_spec(f"{node.module}.{name.name}") if hasattr(module, "__path__") else None
                )
                if not hasattr(module, name.name) and is_module is None:
                    missing.append(f"{node.module}.{name.name}")
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "rollmill":
                    importlib.import_module(name.name)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rollmill":
            is_module = importlib.util.find_spec(f"rollmill.{node.attr}")
            if not hasattr(rollmill, node.attr) and is_module is None:
                missing.append(f"rollmill.{node.attr}")
    assert not missing
