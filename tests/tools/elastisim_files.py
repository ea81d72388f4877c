"""Files as ElastiSim reads them: jobs, their application model, their platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CLUSTER = """<?xml version='1.0'?>
<platform version="4.1"><zone id="all" routing="Full">
<cluster id="c" prefix="n" radical="0-127" suffix="" speed="100Gf" bw="100Gbps" lat="50us"/>
<link id="PFS_read" bandwidth="80GBps" latency="1us"/>
<link id="PFS_write" bandwidth="48GBps" latency="1us"/>
</zone></platform>
"""


def job(**changes: Any) -> dict[str, Any]:
    base = {"type": "rigid", "submit_time": 5, "num_nodes": 4, "application_model": "model.json"}
    return {**base, **changes}


def flexible(kind: str = "malleable", low: int = 1, high: int = 8, **changes: Any) -> dict[str, Any]:
    data = job(type=kind, num_nodes_min=low, num_nodes_max=high, **changes)
    del data["num_nodes"]
    return data


def one_phase(*tasks: dict[str, Any], **phase: Any) -> dict[str, Any]:
    return {"phases": [{"tasks": list(tasks), **phase}]}


def write(folder: Path, model: Any, *jobs: dict[str, Any], platform: bool = False) -> Path:
    (folder / "model.json").write_text(json.dumps(model))
    path = folder / "jobs.json"
    path.write_text(json.dumps({"jobs": list(jobs) or [job()]}))
    if platform:
        (folder / "platform.xml").write_text(CLUSTER)
        path = folder / "configuration.json"
        names = {"jobs_file": "jobs.json", "platform_file": "platform.xml", "pfs_write_links": ["PFS_write"]}
        path.write_text(json.dumps(names))
    return path


CPU = {"type": "cpu", "flops": 8e11, "computation_pattern": "uniform"}
WRITE = {"type": "pfs_write", "bytes": 6e9, "pattern": "all_ranks"}
