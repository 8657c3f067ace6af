"""The learner and its parts. Importing this package does not import torch; its modules do, except ``config``."""
