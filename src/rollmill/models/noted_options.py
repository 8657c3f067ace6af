"""Options (``model.options``) that note which of them a network of the user's reads, to find misspelt names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class NotedOptions(Mapping[str, object]):
    """A mapping that notes what is asked for.

    Going through all names counts as asking for each.

    Attributes:
        read: Names that were asked for, whether they exist or not.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = options
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._options)
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    @property
    def unread(self) -> tuple[str, ...]:
        """Names that nothing has asked for."""
        return tuple(name for name in self._options if name not in self.read)
