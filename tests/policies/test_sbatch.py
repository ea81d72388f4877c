"""What a batch script declares: every spelling, the formats of sbatch, and how a wrong line is refused."""

from __future__ import annotations

import doctest
import shlex
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dask_hpc_policies.jobs import constraints, sbatch
from dask_hpc_policies.jobs.jobspec import InvalidJob, job_spec_from_mapping, resolve
from dask_hpc_policies.jobs.sbatch import job_fields

CHADHA_LISTING_4_2 = """\
#SBATCH --job-name simple_elastic_application
#SBATCH --output output.txt
#SBATCH --error error.txt
#SBATCH --time=00:15:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=48
#SBATCH --min-nodes-invasic=1
#SBATCH --max-nodes-invasic=5
#SBATCH --node-constraints="odd" #supported values pof2, even, odd, ncube
#SBATCH --consider-rigid=1

srun test_mpi_application #job step 1
"""

JOHN_LISTING_4_1 = """\
#SBATCH --job-name adaptive_job_script
#SBATCH --time=00:30:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=96
#SBATCH --min-nodes-invasic=2
#SBATCH --max-nodes-invasic=8
#SBATCH --node-constraints="odd"
#potential values are even, odd, ncube, pof2, #none

srun sample_app
"""

JOHN_LISTING_5_1 = """\
#SBATCH --job-name test_job_script
#SBATCH --time=00:30:00
#SBATCH --nodes=4
#SBATCH --min-nodes-invasic=2
#SBATCH --max-nodes-invasic=8
#SBATCH --min-power=50 # Watts
#SBATCH --max-power=100 # Watts
srun sample_app
"""


def fields(*lines: str) -> dict[str, Any]:
    """What these directives declare, without the name."""
    found = job_fields("#!/bin/sh\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "srun a\n", "job")
    assert found.pop("name") == "job"
    return found


def test_the_published_scripts_are_read_as_published() -> None:
    assert job_fields(CHADHA_LISTING_4_2) == {
        "name": "simple_elastic_application", "nodes": 1, "min_nodes": 1, "max_nodes": 5,
        "constraint": "odd", "walltime": 900, "rigid": True,
    }  # fmt: skip
    assert job_fields(JOHN_LISTING_4_1) == {
        "name": "adaptive_job_script", "nodes": 4, "min_nodes": 2, "max_nodes": 8,
        "constraint": "odd", "walltime": 1800,
    }  # fmt: skip
    assert job_fields(JOHN_LISTING_5_1) == {
        "name": "test_job_script", "nodes": 4, "min_nodes": 2, "max_nodes": 8,
        "walltime": 1800, "min_power_w": 50, "max_power_w": 100,
    }  # fmt: skip


def test_values_that_do_not_go_together_are_left_for_the_job_spec_to_refuse() -> None:
    with pytest.raises(InvalidJob, match=r"nodes=4 is not legal under constraint='odd'; nearest: 3 and 5"):
        job_spec_from_mapping(job_fields(JOHN_LISTING_4_1))


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["-N 4"], "rigid"),
        (["-N 2-4"], "moldable"),
        (["-N 2-4", "--consider-rigid=0"], "moldable"),
        (["-N 4", "--min-nodes-invasic=2", "--max-nodes-invasic=8"], "malleable"),
        (["--min-nodes-invasic=2", "--max-nodes-invasic=8"], "malleable"),
        (["--min-nodes-invasic=2", "--max-nodes-invasic=8", "--consider-rigid"], "moldable"),
        (["-N 4", "--min-nodes-invasic=2", "--max-nodes-invasic=8", "--consider-rigid=1"], "rigid"),
        (["-N 4", "--min-nodes-invasic=2", "--max-nodes-invasic=8", "--consider-rigid=0"], "malleable"),
        (["-N 4", "--min-nodes-invasic=0", "--max-nodes-invasic=0"], "rigid"),
    ],
)
def test_only_a_job_with_both_bounds_is_ever_resized(lines: list[str], kind: str) -> None:
    assert resolve(job_spec_from_mapping({"name": "j", **fields(*lines)}), 16).kind == kind


# ---- round trip


@st.composite
def declarations(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a job that is valid and that a script can say."""
    # printable and not: a name may hold anything but the end of the line
    name = draw(
        st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1, max_size=20).filter(
            str.strip
        )
    )
    job: dict[str, Any] = {"name": name}
    size = st.integers(1, 1000)
    low, start, high = sorted([draw(size), draw(size), draw(size)])
    said = draw(st.sampled_from(["nothing", "nodes", "bounds", "all"]))
    if said in ("bounds", "all"):
        job |= {"min_nodes": low, "max_nodes": high}
    if said in ("nodes", "all"):
        job["nodes"] = start
    optional: dict[str, st.SearchStrategy[Any]] = {
        "constraint": st.sampled_from(constraints.CONSTRAINTS),
        "walltime": st.integers(1, 10**7),
        "min_power_w": st.floats(0, 1e5),
        "max_power_w": st.floats(1e5, 1e6),
        "rigid": st.booleans(),
    }
    for field in draw(st.sets(st.sampled_from(sorted(optional)))):
        job[field] = draw(optional[field])
    try:
        job_spec_from_mapping(job)
    except InvalidJob:
        assume(False)
    return job


def clock(seconds: int) -> list[str]:
    """Every way in which sbatch takes this duration."""
    minutes, s = divmod(seconds, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    spellings = [
        f"{minutes}:{s:02}", f"{hours}:{m:02}:{s:02}", f"0:{minutes}:{s}", f"{days}-{h}:{m}:{s:02}",
        f"{days}-{h:02}:{minutes - (days * 24 + h) * 60}:{s}", f"0-0:0:{seconds}",
    ]  # fmt: skip
    if s == 0:
        spellings += [f"{minutes}", f"{days}-{h:02}:{m:02}"]
    if s == m == 0:
        spellings.append(f"{days}-{h}")
    return spellings


OPTIONS = {
    "name": ["--job-name", "-J"],
    "nodes": ["--nodes", "-N"],
    "min_nodes": ["--min-nodes-invasic", "--min-nodes-invasive"],
    "max_nodes": ["--max-nodes-invasic", "--max-nodes-invasive"],
    "constraint": ["--node-constraints"],
    "walltime": ["--time", "-t"],
    "min_power_w": ["--min-power"],
    "max_power_w": ["--max-power"],
    "rigid": ["--consider-rigid"],
}
CONSTRAINT_WORDS = {"cube": ["cube", "ncube"], "any": ["any", "none"]}


@st.composite
def scripts(draw: st.DrawFn, job: dict[str, Any]) -> str:
    """A batch script that declares `job`, spelt in any way that sbatch takes."""

    def one(items: list[str]) -> str:
        return draw(st.sampled_from(items))

    def texts(field: str, value: Any) -> list[str]:
        if field == "nodes":
            return [str(value), f"{value}-{value}"] + [f"{value // 1024}k"] * (value % 1024 == 0)
        if field == "walltime":
            return clock(value)
        if field == "constraint":
            return CONSTRAINT_WORDS.get(value, [value])
        if field == "rigid":
            return ["1" if value else "0"]
        if field.endswith("_w"):
            return [repr(value), f"{value!r}W", f"{value!r} watt"]
        return [str(value)]

    def quoted(text: str) -> str:
        bare = text if text.replace("-", "").replace(":", "").isalnum() and text.isascii() else None
        double = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return one([shlex.quote(text), double, *([bare] if bare else [])])

    def spelt(field: str, value: Any) -> str:
        option, text = one(OPTIONS[field]), quoted(one(texts(field, value)))
        if value is True:
            return one([option, f"{option}={text}", f"{option} {text}"])
        if option.startswith("--"):
            return one([f"{option}={text}", f"{option} {text}", f"{option}   {text}"])
        return one([f"{option}{text}", f"{option} {text}", f"{option}\t{text}"])

    slurm = ["--output=o.txt", "--error err", "-n 8", "--exclusive", "--mem=4G", "-p test", "--priority=3"]
    # what was said before does not count any more
    early = {"nodes": 77, "walltime": 60, "rigid": True, "name": "old", "constraint": "any"}
    options = [spelt(field, early[field]) for field in sorted(set(early) & set(job)) if draw(st.booleans())]
    range_of_nodes = "nodes" not in job and "min_nodes" in job and job.get("rigid") is True
    said = dict(job)
    late = []
    if range_of_nodes and job["min_nodes"] < job["max_nodes"] and draw(st.booleans()):
        del said["min_nodes"], said["max_nodes"], said["rigid"]
        late.append(f"{one(['--nodes=', '--nodes ', '-N', '-N '])}{job['min_nodes']}-{job['max_nodes']}")
    late += [spelt(field, value) for field, value in said.items()]
    options += draw(st.permutations(late + draw(st.lists(st.sampled_from(slurm), max_size=4))))
    lines = ["#!/bin/bash"]
    for option in options:
        # another line, or the same one as the option before
        if len(lines) > 1 and lines[-1].startswith("#SBATCH ") and "#" not in lines[-1][1:]:
            if draw(st.booleans()):
                lines[-1] += f" {option}"
                continue
            lines[-1] += one(["", "  ", " # as -N 3", " #it's --nodes=3"])
        lines += draw(st.lists(st.sampled_from(["", "  ", "# -N 3", "##SBATCH -N 3", "# SBATCH -N 3"])))
        lines.append(f"#SBATCH {option}")
    lines += [one(["srun a", "  cd /tmp", ": # no comment"]), "#SBATCH --nodes=3 --time=3", "srun b"]
    return one(["\n", "\r\n"]).join(lines)


@given(st.data(), declarations())
def test_every_spelling_of_a_job_gives_that_job(data: st.DataObject, job: dict[str, Any]) -> None:
    script = data.draw(scripts(job))
    assert job_fields(script) == job
    assert job_spec_from_mapping(job_fields(script)) == job_spec_from_mapping(job)


@given(st.integers(1, 10**8))
@example(60)
@example(86400)
def test_every_format_of_a_time_gives_its_seconds(seconds: int) -> None:
    for text in clock(seconds):
        assert fields(f"--time={text}") == {"walltime": seconds}, text


def refusal(script: str) -> str:
    """The message of the error that reading `script` raises; empty when it raises none."""
    try:
        job_spec_from_mapping(job_fields(script))
    except InvalidJob as error:
        return str(error)
    return ""


@given(st.text(), st.sampled_from(["", "#SBATCH ", "#SBATCH --time=", "#SBATCH -N ", "#SBATCH --min-power "]))
def test_any_text_gives_a_job_or_one_refusal_with_its_line(text: str, before: str) -> None:
    assert not (message := refusal(before + text)) or message.startswith("line ")


# ---- examples


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("30:15", 1815), ("1:02:03", 3723), ("2-3", 183600), ("2-3:04", 183840),
        ("2-03:04:05", 183845), ("90:00", 5400), ("0:0:1", 1), ("UNLIMITED", None), ("unlimited", None),
        ("INFINITE", None), ("-1", None), ("0", None), ("0:00", None), ("00:00:00", None), ("0-0", None),
    ],
)  # fmt: skip
def test_times_as_sbatch_takes_them(text: str, seconds: int | None) -> None:
    expected = {} if seconds is None else {"walltime": seconds}
    assert fields(f"--time={text}") == fields(f"-t {text}") == fields(f"-t{text}") == expected


@pytest.mark.parametrize(("text", "nodes"), [("2k", 2048), ("3K", 3072), ("1m", 1048576), ("1k-1K", 1024)])
def test_node_counts_take_the_suffixes_of_sbatch(text: str, nodes: int) -> None:
    assert fields(f"-N {text}") == {"nodes": nodes}


def test_a_later_option_wins_in_any_spelling() -> None:
    assert fields("-N 2", "--nodes=5 -N7") == {"nodes": 7}
    assert fields("--time=10", "-t 0") == {}
    assert fields("--consider-rigid", "--consider-rigid=0") == {"rigid": False}
    assert fields("-N 2-4", "-N 3") == {"nodes": 3}
    assert fields("--min-nodes-invasic=2 --max-nodes-invasic=4", "--min-nodes-invasive=3") == {
        "min_nodes": 3,
        "max_nodes": 4,
    }


def test_blanks_in_a_quoted_count_do_not_matter() -> None:
    assert fields("-N ' 4 '") == {"nodes": 4}
    assert fields("--min-nodes-invasic=' 2' --max-nodes-invasic='4 '") == {"min_nodes": 2, "max_nodes": 4}


def test_a_flag_takes_no_value_from_the_next_option() -> None:
    assert fields("--consider-rigid -N 4") == {"rigid": True, "nodes": 4}
    assert fields("--consider-rigid 0 -N 4") == {"rigid": False, "nodes": 4}


def test_the_name_falls_back_as_in_sbatch() -> None:
    assert job_fields("#SBATCH -J heat\n", "run.sh") == {"name": "heat"}
    assert job_fields("#SBATCH -N 2\n", "run.sh") == {"name": "run.sh", "nodes": 2}
    assert job_fields("") == {"name": "sbatch"}


@pytest.mark.parametrize(
    "line",
    ["##SBATCH -N 3", "# SBATCH -N 3", " #SBATCH -N 3", "#SBATCH_OFF -N 3", "#sbatch -N 3", "#PBS -N 3"],
)
def test_what_only_looks_like_a_directive_is_a_comment(line: str) -> None:
    assert job_fields(f"#!/bin/sh\n{line}\n#SBATCH -t 1\n", "j") == {"name": "j", "walltime": 60}


def test_directives_end_at_the_first_command_not_at_a_blank_line() -> None:
    script = (
        "#!/bin/sh\n\n  \n\t# text\n#SBATCH -N 2\nset -e\n#SBATCH -N 3\n#SBATCH 'broken\nsrun a\nsrun b\n"
    )
    assert job_fields(script, "j") == {"name": "j", "nodes": 2}


def test_options_of_slurm_have_no_effect() -> None:
    assert fields("-n 4 --ntasks-per-node=48", "--nodelist=n1 --no-kill", "-o-N4 -A t5 --time-min=3") == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--nodes=many", ["--nodes='many'", "1 to 1000000000", "2-4"]),
        ("--nodes=0", ["--nodes='0'"]),
        ("-N 4-2", ["-N '4-2'", "a range such as 2-4"]),
        ("-N=4", ["-N '=4'"]),
        ("-N 2.5", ["-N '2.5'"]),
        ("-N 9999999999", ["-N '9999999999'", "1000000000"]),
        ("-N \N{ARABIC-INDIC DIGIT THREE}", ["-N '"]),
        ("--nodes=", ["--nodes=''"]),
        ("--nodes", ["--nodes has no value", "1 to 1000000000"]),
        ("--nodes --time=3", ["--nodes='--time=3'"]),
        ("--min-nodes-invasic=-1", ["--min-nodes-invasic='-1'", "0 for not given"]),
        ("--max-nodes-invasive=9999999999", ["--max-nodes-invasive='9999999999'", "1000000000"]),
        (
            "--node-constraints=pow2",
            ["'pow2'", "any, even, odd, pof2, square, cube, ncube, none", "did you mean 'pof2'"],
        ),
        ("--min-power=-5", ["--min-power='-5'", "watts per node", "at least 0"]),
        ("--max-power='5 s'", ["--max-power='5 s'", "watts per node"]),
        ("--consider-rigid=yes", ["--consider-rigid='yes'", "1 (never resized), 0"]),
        ("--consider-rigid yes", ["--consider-rigid='yes'"]),
        ("-t 1:2:3:4", ["-t '1:2:3:4'", "days-hours:minutes:seconds", "UNLIMITED"]),
        ("-t 1-", ["-t '1-'"]),
        ("-t 5m", ["-t '5m'", "minutes:seconds"]),
        ("-t 1-2-3", ["-t '1-2-3'"]),
        ("-t \N{ARABIC-INDIC DIGIT THREE}", ["-t '"]),
        ("--job-name=''", ["--job-name=''", "not empty"]),
        ("--job-name='heat", ["'heat", "close every quote"]),
        ("--comment=it's", ["close every quote"]),
        ("hetjob", ["hetjob", "one job a script"]),
        ("--min-node-invasic=2", ["--min-node-invasic", "did you mean --min-nodes-invasic"]),
        ("--max-nodes=2", ["--max-nodes", "did you mean --max-nodes-inv", "in full"]),
        ("--node-constraint=even", ["did you mean --node-constraints"]),
        ("--consider-rigit", ["did you mean --consider-rigid"]),
        ("--max-pover=200", ["did you mean --max-power"]),
        ("--min-nodes-invasic=2", ["--min-nodes-invasic='2'", "--max-nodes-invasic", "0 counts as not"]),
        ("--max-nodes-invasive=2 --min-nodes-invasive=0", ["--max-nodes-invasive='2'", "--min-nodes-inv"]),
        (
            "--min-nodes-invasic=2 --max-nodes-invasic=8 -N 2-4",
            ["-N '2-4'", "one number", "--min-nodes-invasic (line 3)", "--max-nodes-invasic (line 3)"],
        ),
    ],
)  # fmt: skip
def test_refusals_name_line_option_value_and_what_is_allowed(line: str, words: list[str]) -> None:
    with pytest.raises(InvalidJob) as caught:
        fields("--output=o", line)
    for word in ["line 3: ", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "option",
    "account acctg-freq array begin bell chdir cluster-constraint clusters comment constraint container "
    "contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot "
    "dependency distribution error exclude exclusive export export-file extra-node-info get-user-env gpus "
    "gpus-per-node gpus-per-task gres hint hold ignore-pbs input job-name kill-on-invalid-dep licenses "
    "mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill "
    "no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-node open-mode output overcommit "
    "oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot requeue "
    "reservation signal sockets-per-node spread-job switches test-only thread-spec threads-per-core time "
    "time-min tmp tres-bind tres-per-task uid use-min-nodes verbose wait wait-all-nodes wckey wrap".split(),
)
def test_options_of_sbatch_itself_are_let_be(option: str) -> None:
    said = {"nodes": "2", "time": "5", "job-name": "job"}
    assert set(fields(f"--{option}={said.get(option, 'x')}")) <= {"nodes", "walltime"}


def test_the_example_in_the_documentation_is_true() -> None:
    assert doctest.testmod(sbatch) == (0, 1)
