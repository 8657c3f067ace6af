"""The learner and its parts. Importing this package imports no torch; its modules, other than ``config``, do."""
