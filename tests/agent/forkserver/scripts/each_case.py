"""In place of torchrun: has torch start one training process after another; reports each.

Arguments: a file that lists the cases, one for the results, a folder for what they print.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import get_subprocess_handler

cases, results, folder = map(Path, sys.argv[1:])
found = {}
for name, case in json.loads(cases.read_text()).items():
    out, err = (str(folder / f"{name}.{stream}") for stream in ("out", "err"))
    handler = get_subprocess_handler(
        sys.executable, ("-u", *case["arguments"]), {"RANK": "3", **case.get("env", {})},
        out, err, 0, None,
    )  # fmt: skip
    if case.get("signal"):
        while not Path(out).read_text().endswith("\n"):
            pass
        handler.close(signal.Signals[case["signal"]])
    code = handler.proc.wait(120)
    assert handler.proc.poll() == code
    text = [Path(each).read_text() for each in (out, err)]
    found[name] = {"code": code, "out": text[0], "err": text[1]}
results.write_text(json.dumps(found))
os._exit(0)
