"""What counts as a scripted guest."""

from __future__ import annotations

from rollmill.inference.guests import ScriptedGuest
from rollmill.regimes.guests import RandomGuest
from rollmill.specs import ActionSpec, CategoricalHead


def test_what_chooses_is_scripted() -> None:
    guest = RandomGuest(ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"), 0)
    assert isinstance(guest, ScriptedGuest)
    assert not isinstance(object(), ScriptedGuest)
