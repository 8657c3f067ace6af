"""Messages a second through our queue, multiprocessing.Queue and faster-fifo: python benchmarks/ring.py [seconds]."""

import json
import sys

from rollmill.benchmarking.ring import run

if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]) if len(sys.argv) > 1 else 18.0)))
