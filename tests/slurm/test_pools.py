"""Pools of a Slurm cluster: what their jobs look like, and what is refused; nothing is submitted here."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import dask
import pytest

import dask_hpc
from dask_hpc.config import Settings
from dask_hpc.deploy.slurm.jobs import SLURMJob
from dask_hpc.deploy.slurm.pools import read_pools
from dask_hpc.deploy.slurm.reconcile import is_followed, lead_s

COMMON = {"cores": 4, "processes": 2, "memory": "8 GB", "queue": "compute", "interface": "lo"}


@pytest.fixture
def made() -> Iterator[Any]:
    """A cluster with two pools besides the default one."""
    staging = {"queue": "staging", "cores": 2, "processes": 1, "memory": "4 GB", "walltime": "01:00:00"}
    fat = {"memory": "64 GB", "resources": {"licence": 1}, "job-extra-directives": ["--exclusive"]}
    with dask_hpc.SLURMCluster(
        **COMMON,
        pools={"staging": staging, "fat": fat},
        resources={"compute": None},
        scheduler_options={"dashboard_address": ":0"},
    ) as cluster:
        yield cluster


def option(script: str, name: str) -> str:
    """Value of an option of the workers' command."""
    return str(re.findall(rf" {name} (\S+)", script)[-1])


def test_jobs_of_a_pool_have_its_options_and_else_those_of_the_cluster(made: Any) -> None:
    plain, staging, fat = made.job_script(), made.job_script(pool="staging"), made.job_script(pool="fat")
    assert "#SBATCH -p compute" in plain
    assert "#SBATCH -p staging" in staging
    assert "#SBATCH -t 01:00:00" in staging
    assert "#SBATCH --cpus-per-task=2" in staging
    assert "#SBATCH -p compute" in fat
    assert "#SBATCH --exclusive" in fat
    assert "--exclusive" not in plain
    # a task that asks for 1 of it takes a thread
    assert option(plain, "--resources") == "compute=2"
    assert option(staging, "--resources") == "staging=2"
    assert option(fat, "--resources") == "fat=2,licence=1"
    assert "--nworkers" not in staging
    assert option(fat, "--nworkers") == "2"


def test_a_resource_is_told_with_all_its_digits() -> None:
    amounts = {"bytes": 16 * 2**30, "half": 1 / 3, "watts": 1234567.5}
    job = SLURMJob("tcp://a", name="b", cores=1, memory="1 GB", resources=amounts)
    told = dict(one.split("=") for one in option(job.job_script(), "--resources").split(","))
    # a task may ask for all of it
    assert {name: float(amount) for name, amount in told.items()} == amounts


def test_a_worker_has_its_whole_name_whatever_is_in_it() -> None:
    for name in ("heat run-0", "O'Neil; $HOME-1", "SLURMCluster-0"):
        [command] = re.findall("exec .*", SLURMJob("tcp://a", name=name, cores=1, memory="1 GB").job_script())
        words = shlex.split(command)
        assert words[words.index("--name") + 1] == name


def test_adapt_takes_no_other_options_with_pools_than_without(made: Any) -> None:
    with pytest.raises(TypeError, match="adapt got pool; allowed: "):
        made.adapt(pool="staging", minimum_jobs=1)


def test_bounds_are_given_in_workers_or_in_jobs(made: Any) -> None:
    with pytest.raises(ValueError, match=r"minimum is 2 .workers. and minimum_jobs is 1; give one of them"):
        made.adapt(minimum=2, minimum_jobs=1)
    with pytest.raises(ValueError, match=r"maximum is 1 .workers., less than the 2 of a job; .*_jobs=1"):
        made.adapt(maximum=1)
    assert made.adapt(maximum=0).maximum == 0


@pytest.mark.parametrize("pool", [None, "staging"])
def test_a_flag_of_any_pool_is_true_or_false(made: Any, pool: str | None) -> None:
    with pytest.raises(ValueError, match="force is 'no'; allowed: True or False"):
        made.scale(jobs=1, pool=pool, force="no")


def test_a_size_has_to_be_given(made: Any) -> None:
    with pytest.raises(ValueError, match="scale got no size"):
        made.scale(pool="staging")


def test_agents_in_jobs_have_the_settings_of_the_cluster(made: Any) -> None:
    assert "export DASK_HPC__KILL_DELAY='25 s'" in made.job_script()
    with dask.config.set({"hpc.kill-delay": "4 s", "hpc.walltime.notice": "1 min", "hpc.walltime.margin": 5}):
        script = made.job_script(pool="staging")
    assert "export DASK_HPC__KILL_DELAY='4 s'" in script
    assert "export DASK_HPC__WALLTIME__NOTICE='60 s'" in script
    assert "export DASK_HPC__WALLTIME__MARGIN='5 s'" in script


def test_workers_have_the_name_of_the_pool_in_theirs_and_jobs_are_told_apart(made: Any) -> None:
    specs = {}
    for pool in ("", "staging", "fat"):
        specs.update(made.new_worker_spec(pool))
    assert list(specs) == ["SLURMCluster-0", "SLURMCluster-staging-1", "SLURMCluster-fat-2"]
    assert [spec["group"] for spec in specs.values()] == [["-0", "-1"], ["-0"], ["-0", "-1"]]
    # jobs with several workers number them, and so must those with one
    assert specs["SLURMCluster-staging-1"]["options"]["name"] == "SLURMCluster-staging-1-0"


def test_several_workers_a_job_are_known_although_only_the_configuration_says_so() -> None:
    settings = {f"jobqueue.slurm.{name}": value for name, value in COMMON.items()}
    with (
        dask.config.set(settings),
        dask_hpc.SLURMCluster(scheduler_options={"dashboard_address": ":0"}) as cluster,
    ):
        [spec] = cluster.new_worker_spec().values()
        assert spec["group"] == ["-0", "-1"]
        assert cluster.scale(cores=8, dry_run=True)["add"] == 2


def test_a_job_with_several_workers_is_a_node_whoever_has_installed_the_runtime() -> None:
    preload = {"distributed.scheduler.preload": ["dask_hpc.preload"]}
    options = {"scheduler_options": {"dashboard_address": ":0"}}
    with (
        dask.config.set(preload),
        dask_hpc.SLURMCluster(**COMMON, **options) as cluster,
        cluster.get_client() as client,
    ):
        assert dask_hpc.runtime(client).status()["settings"]["node_by"] == "job"
        dask_hpc.runtime(client).uninstall()
        rt = dask_hpc.install(client)
        cluster.unpin()
        assert rt.status()["settings"]["node_by"] == "job"


def test_the_size_of_a_pool_is_its_own(made: Any) -> None:
    assert made.scale(jobs=3, pool="staging", dry_run=True)["add"] == 3
    assert made.scale(cores=8, pool="staging", dry_run=True)["add"] == 4
    assert made.scale(cores=8, dry_run=True)["add"] == 2
    assert made.scale(4, dry_run=True)["add"] == 2
    assert made.scale(memory="128 GB", pool="fat", dry_run=True)["add"] == 2
    with pytest.raises(ValueError, match="pool is 'stagin'; allowed: 'staging', 'fat'"):
        made.scale(jobs=1, pool="stagin")


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        ("staging", r"pools is 'staging'; allowed: options by name of the pool"),
        ({"a b": {}}, r"pools has the name 'a b'; allowed: letters, digits"),
        ({"x;rm": {}}, r"pools has the name 'x;rm'"),
        ({"s": "staging"}, r"pools\['s'\] is 'staging'; allowed: options, such as"),
        ({"s": {"que": "x"}}, r"pools\['s'\] has the option 'que'; did you mean 'queue'\?"),
        ({"s": {"security": None}}, r"pools\['s'\] has the option 'security'; allowed: account, "),
        ({"s": {"jobs": -1}}, r"pools\['s'\]\['jobs'\] is -1; allowed: a whole number, 0 or more"),
        ({"s": {"resources": 2}}, r"pools\['s'\]\['resources'\] is 2; allowed: amounts by name"),
        (
            {"s": {"resources": {"g": "$(id)"}}},
            r"pools\['s'\]: resources\['g'\] is '\$\(id\)'; allowed: a num",
        ),
        ({"s": {"resources": {"g": float("inf")}}}, r"pools\['s'\]: resources\['g'\] is inf; allowed: a num"),
        ({"s": {"resources": {"a=1": 1}}}, r"pools\['s'\]: resources has the name 'a=1'"),
        ({"s": {"worker-extra-args": ["--resources", "a=1"]}}, r"has --resources; give resources="),
        ({"s": {"memory": "much"}}, r"pools\['s'\]: "),
    ],
)
def test_what_is_refused_names_the_pool_the_value_and_what_is_allowed(pools: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_pools(pools, "slurm", COMMON)


def test_pools_may_come_from_the_configuration() -> None:
    with dask.config.set({"jobqueue.slurm.pools": {"staging": {"job-mem": "1G", "jobs": 2}}}):
        pools = read_pools(None, "slurm", COMMON)
        assert pools["staging"].options == {"job_mem": "1G"}
        assert pools["staging"].jobs == 2
    with (
        dask.config.set({"jobqueue.slurm.pools": {"staging": {"partition": "x"}}}),
        pytest.raises(ValueError, match=r"jobqueue\.slurm\.pools\['staging'\] has the option 'partition'"),
    ):
        read_pools(None, "slurm", COMMON)


def test_a_walltime_that_is_shorter_than_emptying_takes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    options = {**COMMON, "scheduler_options": {"dashboard_address": ":0"}, "silence_logs": False}
    # of several, Slurm takes the last; and one that it does not know, it refuses itself
    short, odd = {"walltime": "30", "job_extra_directives": ["--time=2"]}, {"walltime": "soon"}
    with (
        caplog.at_level(logging.WARNING),
        dask_hpc.SLURMCluster(**options, pools={"short": short, "odd": odd}),
    ):
        pass
    said = [record.message for record in caplog.records if "walltime" in record.message]
    assert said == [
        "The walltime of pool 'short' is 120 s: less than hpc.walltime.notice (120 s) and "
        "hpc.walltime.margin (10 s) together; workers take tasks for half of that time only"
    ]


def test_a_successor_is_asked_for_in_time_and_not_at_once() -> None:
    known = Settings(walltime_notice_s=120.0, walltime_margin_s=10.0, slurm_poll_s=15.0)
    assert lead_s(3600.0, [], known) == 130 + 30
    assert lead_s(3600.0, [200.0, 40.0], known) == 130 + 230
    assert lead_s(None, [200.0], known) == 130 + 230
    # a job that has just started has none yet, however short it is and however long the queue
    for limit_s in (60.0, 120.0, 300.0):
        assert lead_s(limit_s, [900.0], known) < limit_s
    # it keeps its successor until it is given more time
    assert is_followed(1000.0, True, None)
    assert is_followed(1000.0, False, 1000.0)
    assert not is_followed(1060.0, False, 1000.0)
    assert not is_followed(1000.0, False, None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"processes": 0}, "processes is 0; allowed: a whole number, 1 or more"),
        ({"processes": 3}, "processes is 3; allowed: at most as many as cores, which are 2"),
        ({"cores": 0}, "cores is 0; allowed: a whole number, 1 or more"),
        ({"cores": -1}, "cores is -1; allowed: "),
        ({"memory": "0 GB"}, "memory is '0 GB'; allowed: an amount above 0"),
        ({"memory": "much"}, "memory is 'much'; allowed: an amount"),
        ({"job_directives_skip": "--mem"}, r"job_directives_skip is '--mem'; allowed: a list, .*\['--mem'\]"),
        ({"job_script_prologue": "w"}, "job_script_prologue is 'w'; allowed: a list"),
        ({"job_extra_directives": "--exclusive"}, "job_extra_directives is '--exclusive'; allowed: a list"),
        ({"worker_extra_args": "--lifetime 1h"}, "worker_extra_args is '--lifetime 1h'; allowed: a list"),
    ],
)
def test_a_job_of_no_size_or_with_text_for_a_list_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SLURMJob("tcp://scheduler", name="one", **{"cores": 2, "memory": "1 GB", **options})


@pytest.mark.parametrize(("key", "value"), [("processes", 0), ("job-extra-directives", "--exclusive")])
def test_what_the_configuration_has_wrong_is_named_with_its_key(key: str, value: Any) -> None:
    with (
        dask.config.set({f"jobqueue.slurm.{key}": value}),
        pytest.raises(ValueError, match=rf"jobqueue\.slurm\.{key} is {value!r}; allowed: "),
    ):
        SLURMJob("tcp://scheduler", name="one", cores=2, memory="1 GB")


def test_a_script_that_is_interrupted_ends_with_an_error() -> None:
    script = "import os, signal, dask_hpc.deploy.slurm.cluster; os.kill(os.getpid(), signal.SIGINT); print(1)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
