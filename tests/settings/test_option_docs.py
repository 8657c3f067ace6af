"""Documentation of fields, read from docstrings."""

from __future__ import annotations

from dataclasses import dataclass

from rollmill.settings.option_docs import attribute_docs, without_markup


@dataclass
class Base:
    """First line: with a colon.

    Args:
        wrong: Of another section.

    Attributes:
        rate: Step size, in
            two lines: with a colon.
        kind (str): Its type is left out.
        replaced: Of the base.

        after_a_blank_line: Still inside.

    Raises:
        ValueError: Of another section, too.
    """

    rate: float = 1.0


@dataclass
class Derived(Base):
    """Another one.

    Attributes:
        replaced: Of the subclass.
        own: Its own
            - with a list
    """


class Second:
    """Attributes:
    alone: Beside the section's name.
    """


class Undocumented:
    pass


def test_the_text_of_each_attribute_is_one_line() -> None:
    assert attribute_docs(Base) == {
        "rate": "Step size, in two lines: with a colon.",
        "kind": "Its type is left out.",
        "replaced": "Of the base.",
        "after_a_blank_line": "Still inside.",
    }


def test_a_subclass_has_the_attributes_of_its_bases_and_replaces_them() -> None:
    found = attribute_docs(Derived)
    assert found["rate"] == "Step size, in two lines: with a colon."
    assert found["replaced"] == "Of the subclass."
    assert found["own"] == "Its own - with a list"


def test_a_class_without_a_docstring_or_a_section_has_none() -> None:
    assert attribute_docs(Undocumented) == {}
    assert attribute_docs(object) == {}


def test_a_section_ends_where_a_line_is_not_indented() -> None:
    assert attribute_docs(Second) == {}


def test_text_for_a_terminal_has_no_markup() -> None:
    text = 'One of ``"a"`` and ``x > 1``, see :func:`rollmill.train` and :class:`~rollmill.Run`.'
    assert without_markup(text) == 'One of "a" and x > 1, see rollmill.train and rollmill.Run.'
