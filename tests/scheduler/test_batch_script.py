"""Jobs declared by batch scripts, on a live cluster."""

from __future__ import annotations

import pytest
from helpers import live, record, started

import dask_hpc
from dask_hpc_policies.jobs.jobspec import InvalidJob

SCRIPT = """#!/bin/bash
#SBATCH --job-name=heat
#SBATCH --nodes=2 --min-nodes-invasic=1
#SBATCH --max-nodes-invasic=4 --node-constraints=pof2
#SBATCH --time=00:30:00 --min-power=50 --max-power=100
srun ./heat
"""


@live()
async def test_a_job_from_a_batch_script_starts_at_its_size_and_is_resized_within_its_bounds(
    c, s, *workers, tmp_path
):
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.batch_job(tmp_path / "run.sh", priority=3) as job:
        await started(s, job, 2)
        spec = record(s, job).spec
        assert (spec.name, spec.priority, spec.walltime_s) == ("heat", 3, 1800.0)
        assert (spec.min_power_w, spec.max_power_w, spec.constraint) == (50, 100, "pof2")
        assert (await job.resize(3))["result"] == "refused"
        assert (await job.resize(4))["result"] == "done"
    await job.wait(10)


@live(workers=1)
async def test_a_batch_script_that_cannot_be_declares_nothing_and_names_the_line(c, s, a, tmp_path):
    (tmp_path / "run.sh").write_text("#!/bin/bash\n#SBATCH --nodes=none\n", encoding="utf-8")
    rt = await dask_hpc.install(c)
    with pytest.raises(InvalidJob, match=r"line 2.*--nodes"):
        rt.batch_job(tmp_path / "run.sh")
    assert await rt.jobs() == []
