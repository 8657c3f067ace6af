"""The tests mirror the source: each module is tested in its package's folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_SOURCE = _TESTS.parent / "src/rollmill"
_MODULES = [
    path.relative_to(_SOURCE)
    for path in sorted(_SOURCE.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]


def _imports(test: Path) -> str:
    return "\n".join(re.findall(r"^ *(?:from|import) .*?(?:\(.*?\)|$)", test.read_text(), re.M | re.S))


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_a_module_has_a_test_in_the_folder_of_its_package(module: Path) -> None:
    folder = _TESTS / module.parent
    if (folder / f"test_{module.name}").exists():
        return
    package = ".".join(("rollmill", *module.parent.parts))
    of_package = rf"from {re.escape(package)} import [^\n]*\b{module.stem}\b"
    pattern = re.compile(rf"{re.escape(package)}\.{module.stem}\b|{of_package}")
    assert any(pattern.search(_imports(test)) for test in folder.glob("*.py")), (
        f"nothing in {folder.relative_to(_TESTS.parent)} imports {package}.{module.stem}: add test_{module.name}"
    )
