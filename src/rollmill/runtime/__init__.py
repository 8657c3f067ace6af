"""Processes and what they share: memory, supervision, accounts of time, seeds, logs. Knows no RL, imports no torch.

=============== ========================================================================================================
``arena``       anonymous shared memory, passed by descriptor
``supervisor``  starts, watches and ends processes; nothing outlives it
``watchdog``    ends the run's processes when the main process cannot; ``sweep`` is the script that it runs
``child``       the start of a process and what its target is given
``spawning``    the moment in which a process is started; ``surroundings`` is what it has of the main process then
``fork_server`` imports PyTorch once and forks the processes
``events``      what the supervisor reports, and the errors to raise for it
``ledger``      where each process's time goes
``seeds``       random streams keyed by (seed, role, index)
``affinity``    usable cores, CPU sets and niceness
``signals``     SIGINT, SIGTERM and SIGHUP as a flag
``logs``        ``run.log``
``cgroups``     what the container lets us have
=============== ========================================================================================================
"""
