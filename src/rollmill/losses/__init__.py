"""Pure tensor functions of the algorithms: no configuration, no logging, no device choice.

The time axis is that of :mod:`rollmill.specs`. Importing this package imports no torch; its modules do.
"""
