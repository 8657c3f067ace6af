"""The settings of a run: its configuration, presets, options on the command line, and files in its directory."""
