"""``rollmill doctor``: whether this machine and this installation can train, and what to do about what is wrong.

``software.py`` checks versions and extras, ``machine.py`` cores, memory, limits and the GPU, ``rendering.py`` what
windows, videos and sound need, and ``folders.py`` where files are written. ``examination.py`` runs all of them.
"""
