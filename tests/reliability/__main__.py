"""Damage 500 models and 500 tables and count what becomes of their readers: `make reliability`."""

import argparse
import json
import os
import resource
import sys
import tempfile
import warnings
from pathlib import Path

from reliability.mutations import damage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = None if options.out is None else options.out.absolute()
    report, failures = {}, []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for name in ("models", "tables"):
            counts, failed = damage(Path(place), options.times, name == "tables")
            report[name] = {**counts, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
            failures += failed
    print(json.dumps(report, indent=1), *failures, sep="\n")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "reliability.json").write_text(json.dumps({**report, "failures": failures}, indent=1))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
