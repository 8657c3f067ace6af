"""Many runs as one job: sweeps over settings, and suites of environments and seeds."""
