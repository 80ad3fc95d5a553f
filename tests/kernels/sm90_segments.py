"""As `sm90_resources.py`, for scans cut into segments: `python sm90_segments.py KIND:D:DTYPE ...`, with TRITON_INTERPRET unset."""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from sm90_resources import DTYPES, catch, resources, run_scan

from mnemolab.kernels.triton import scan

SEGMENTS = 4


if __name__ == "__main__":
    launches: list = []
    catch(launches)
    chosen = scan.choose
    scan.choose = lambda *a: replace(chosen(*a), segments=SEGMENTS)
    for job in sys.argv[1:]:
        kind, D, dtype = job.split(":")
        launches.clear()
        run_scan(kind, int(D), DTYPES[dtype])
        for launch in launches:
            if launch[0].__name__ not in ("prepare_kernel", "gradient_kernel"):
                direction = {name: launch[2][name] for name in ("REVERSE", "DECAY", "NORM") if name in launch[2]}
                print(json.dumps({"job": job, **direction, **resources(*launch)}), flush=True)
