"""Another package brings settings: they are everywhere where ours are, and no file of ours knows of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import dask_hpc
from dask_hpc.config import Settings, register, settings
from dask_hpc.config import rows as settings_table
from dask_hpc.config import text as settings_text
from dask_hpc.errors import ConfigError
from dask_hpc_policies import codec
from dask_hpc_policies.params import Choice, Duration, Float, Int

MODULE = """
from dask_hpc_policies.params import Duration, Power

ROWS = (
    Power("cap", 300.0, hi=1000.0, help="Most power of a node."),
    Duration("interval", 5.0, lo=0.1, hi=60.0, help="How often it is measured."),
)
"""
ENTRY_POINTS = "[dask_hpc.settings]\npower-meter = meter_of_others:ROWS\nbroken = meter_of_others:NOTHING\n"
#: What a process of its own says, one JSON value.
PROGRAM = """
import json, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from dask_hpc.config import settings
    found = settings()
from click.testing import CliRunner
from dask_hpc.cli import hpc
run = lambda *words: CliRunner().invoke(hpc, words).output
print(json.dumps({
    "extra": found.extra, "told": [str(one.message) for one in told], "yaml": run("config", "hpc"),
    "schema": run("config", "hpc", "--schema"), "refused": run("update", "power-meter.cap=2 kW"),
}))
"""


def test_what_is_installed_beside_us_is_found_by_every_process(tmp_path: Path) -> None:
    (tmp_path / "meter_of_others.py").write_text(MODULE)
    info = tmp_path / "meter_of_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: meter-of-others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "site.yaml").write_text("hpc: {power-meter: {interval: 2 s}}\n")
    environment = {**os.environ, "DASK_HPC__POWER_METER__CAP": "0.5 kW", "DASK_CONFIG": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["extra"] == {"power-meter": {"cap_w": 500.0, "interval_s": 2.0}}
    assert len(found["told"]) == 1
    assert "meter_of_others:NOTHING" in found["told"][0]
    section = yaml.safe_load(found["yaml"])["hpc"]["power-meter"]
    assert section == {"cap": "300 W", "interval": "5 s"}
    assert "# Most power of a node.\n    cap: 300 W  # a number from 0 to 1000 W\n" in found["yaml"]
    jsonschema.validate(yaml.safe_load(found["yaml"]), yaml.safe_load(found["schema"]))
    assert found["refused"].startswith(
        "Error: hpc.power-meter.cap is '2 kW'; allowed: a number from 0 to 1000 W, such as '300 W' "
        "(set hpc.power-meter.cap in the configuration, or DASK_HPC__POWER_METER__CAP)"
    )


ROWS = (
    Duration("interval", 5.0, lo=0.1, hi=60.0, help="How often."),
    Choice("level", "node", ("node", "rack"), help="Of what."),
)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings_table, "_registered", {})
    register("meter", ROWS)
    return


def test_they_have_a_place_in_the_settings_and_survive_json(registered: None) -> None:
    assert Settings().extra == {"meter": {"interval_s": 5.0, "level": "node"}}
    changed = settings({"meter": {"interval": "3 s"}}).updated(meter_level="rack", tick="2 s")
    assert changed.extra["meter"] == {"interval_s": 3.0, "level": "rack"}
    assert changed.updated(meter_interval_s=4).extra["meter"] == {"interval_s": 4.0, "level": "rack"}
    assert codec.decode(Settings, json.loads(json.dumps(codec.encode(changed)))) == changed
    with pytest.raises(ConfigError, match=r"hpc\.meter\.interval is 99"):
        codec.decode(Settings, {"extra": {"meter": {"interval_s": 99}}})
    with pytest.raises(ConfigError, match=r"there is no setting hpc\.meter\.rate"):
        codec.decode(Settings, {"extra": {"meter": {"rate": 1}}})
    with pytest.raises(ConfigError, match=r"hpc\.meter is 3; allowed: a mapping"):
        settings({"meter": 3})
    assert "  meter:\n    # How often.\n    interval: 5 s" in settings_text.yaml_text()


def test_without_them_there_is_nothing_of_them() -> None:
    assert Settings().extra == {}
    with pytest.raises(ConfigError, match=r"there is no setting hpc\.meter"):
        settings({"meter": {"interval": "3 s"}})


def test_a_cluster_that_runs_takes_them(registered: None) -> None:
    with (
        dask_hpc.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        cluster.get_client() as client,
    ):
        rt = dask_hpc.install(client, meter_level="rack")
        assert rt.status()["settings"]["extra"] == {"meter": {"interval_s": 5.0, "level": "rack"}}
        panel = rt.panel()
        panel.settings.show.value = True
        panel.settings.fields.controls["meter.interval"].value = "2 s"
        panel.settings.apply.click()
        assert "Applied" in panel.settings.says.value
        assert rt.status()["settings"]["extra"] == {"meter": {"interval_s": 2.0, "level": "rack"}}
        panel.close()


@pytest.mark.parametrize(
    ("section", "rows", "why"),
    [
        ("meter", ROWS[:1], "is registered with other settings"),
        ("pool", ROWS, "that of another setting"),
        ("tick", ROWS, "that of another setting"),
        ("tick-s", ROWS, "that of another setting"),
        ("pool-max", [Int("nodes", 1)], "that of another setting"),
        ("twice", [ROWS[0], ROWS[0]], "a name twice"),
        ("Meter", ROWS, "allowed: a-z"),
        ("other", [Int("on", 1)], "no word that YAML reads"),
        ("other", [Float("gain", 3.0, hi=2.0)], r"hpc\.other\.gain is 3\.0; allowed: a number of at most 2"),
    ],
)
def test_what_cannot_be_registered(registered: None, section: str, rows: Any, why: str) -> None:
    before = dict(settings_table._registered)
    with pytest.raises(ConfigError, match=why):
        register(section, rows)
    assert settings_table._registered == before
    register("meter", ROWS)  # the same again is no other
