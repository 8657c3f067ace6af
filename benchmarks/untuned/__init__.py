"""The parts of ``benchmarks/out_of_the_box.py``: what is learned, by whom, and which differences count."""
