"""The command as a person types it, and every kind of bad input: one sentence, exit code 2, nothing lost."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from initmem import chapters, claims, cli, runner, store
from initmem.config import InitmemError

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "initmem.cli"]


def run(*arguments, **options):
    """A real process of the command."""
    options = {"encoding": "utf-8"} | options
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, cwd=ROOT, **options)


def call(capsys, monkeypatch, *arguments):
    """The command in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["initmem", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


BAD = [
    (["reproduce", "sgd-remember"], "unknown claim 'sgd-remember'", "did you mean 'sgd-remembers'"),
    (["reproduce", "sgd-remembers", "--preset", "digit"], "unknown preset 'digit'", "did you mean 'digits'"),
    (["reproduce", "sgd-remembers", "--seeds", "0"], "seeds = 0", "greater than or equal to 1"),
    (["reproduce", "sgd-remembers", "-p", "learning_rate", "0.1"], "unknown parameter 'learning_rate'", "lr"),
    (["reproduce", "sgd-remembers", "-p", "lrr", "0.1"], "unknown parameter 'lrr'", "did you mean 'lr'"),
    (["reproduce", "sgd-remembers", "-p", "lr", "fast"], "lr = 'fast'", "number"),
    (["reproduce", "sgd-remembers", "-p", "lr", "-0.1"], "lr = -0.1", "greater than 0"),
    (["reproduce", "sgd-remembers", "-p", "lr", ".nan"], "lr = nan", "finite"),
    (["reproduce", "sgd-remembers", "-p", "lr", "inf"], "lr = inf", "finite"),
    (["reproduce", "sgd-remembers", "-p", "epochs", "2.5"], "epochs = 2.5", "integer"),
    (["reproduce", "sgd-remembers", "-p", "sigma_w", "[]"], "sigma_w = []", "at least 1"),
    (["reproduce", "sgd-remembers", "-p", "sigma_w", "[0, 1]"], "= 0", "greater than 0"),
    (["reproduce", "sgd-remembers", "-p", "sigma_w", "0"], "= 0", "greater than 0"),
    (["reproduce", "sgd-remembers", "-p", "optimizers", "adamm"], "'adamm'", "did you mean 'adam'"),
    (["reproduce", "sgd-remembers", "-p", "batch_size", "301"], "batch_size = 301", "2 to 300"),
    (["reproduce", "sgd-remembers", "-p", "batch_size", "1"], "batch_size = 1", "greater than or equal to 2"),
    (["reproduce", "sgd-remembers", "-p", "lr", "1e101"], "lr = 1e+101", "less than or equal to 1e+100"),
    (["reproduce", "batch-slows", "-p", "batch_size", "100"], "batch_size = 400 is larger than", "in the recipe with batch_size × 4"),
    (["reproduce", "batch-slows", "-p", "batch_size", "2"], "batch_size = 1", "in the recipe with batch_size × 0.25"),
    (["reproduce", "sgd-remembers", "--preset", "laptop"], "cifar10", "initmem data fetch cifar10"),
    (["rerun", "sgd-remembrs"], "unknown chapter 'sgd-remembrs'", "did you mean 'sgd-remembers'"),
    (["rerun", "sgd-remembers", "-p", "seed", "3"], "unknown parameter 'seed'", "did you mean 'seeds'"),
    (["rerun", "sgd-remembers", "-p", "batch_size", "9999"], "batch_size = 9999", "2 to 300"),
    (["rerun", "sgd-remembers", "-o", "no/such/folder/out.ipynb"], "no/such/folder", "does not exist"),
    (["rerun", "sgd-remembers", "-o", "book/sgd-remembers.ipynb"], "book/sgd-remembers.ipynb", "outside the book"),
    (["rerun", "sgd-remembers", "-o", "tests"], "-o tests", ".ipynb"),
    (["reproduce", "sgd-remembers", "-p", "lr"], "-p lr has no value", "-p lr VALUE"),
    (["reproduce", "sgd-remembers", "-p", "lr", ""], "-p lr has no value", "-p lr VALUE"),
    (["reproduce", "sgd-remembers", "--preset", "digits", "-p", "preset", "laptop"], "preset is given twice", "give it once"),
    (["reproduce", "sgd-remembers", "-p", "lr", "0.1", "-p", "lr", "0.2"], "lr is given twice", "give it once"),
    (["reproduce", "sgd-remembers", "-p", "self", "3"], "unknown parameter 'self'", "lr"),
    (["reproduce", "sgd-remembers", "-p", "epochs", "99999999999999999999"], "epochs = ", "less than or equal"),
    (["reproduce", "sgd-remembers", "-p", "lr", "1e200"], "lr = 1e+200", "less than or equal"),
    (["reproduce", "sgd-remembers", "-p", "lr", "1:30"], "lr = '1:30'", "valid number"),  # to YAML 1.1 that is 90
    (["reproduce", "sgd-remembers", "-p", "lr", "yes"], "lr = 'yes'", "valid number"),
    (["reproduce", "sgd-remembers", "-p", "sigma_w", "{a: 1}"], "sigma_w = {'a': '1'}", "valid number"),
    (["reproduce", "sgd-remembers", "-p", "sigma_w", "[1, 1e0]"], "sigma_w = [1, 1.0]", "1.0 is given twice"),
    (["reproduce", "sgd-remembers", "-p", "sigma_w", "[1, None]"], "sigma_w = None", "valid number"),
    (["reproduce", "sgd-remembers", "-p", "optimizers", "[adam, adam]"], "['adam', 'adam']", "'adam' is given twice"),
    (["results", "export", "tests"], "tests", "choose another name"),
    (["results", "merge", "tests"], "tests is a folder", "`initmem results export`"),
    (["clocks", "--lr", "yes"], "--lr = 'yes'", "valid number"),
    (["clocks", "--lr", "0.1", "--epochs", "1.5"], "--epochs = '1.5'", "valid integer"),
    (["clocks"], "missing option '--lr'", "`initmem clocks --help`"),
    (["clocks", "--lr"], "'--lr' requires an argument", "--help"),
    (["reproduce"], "missing argument 'claim'", "`initmem reproduce --help`"),
    (["reproduce", "sgd-remembers", "--seeds", "1.5"], "--seeds = '1.5'", "valid integer"),
    (["reproduce", "sgd-remembers", "--jobs", "0"], "--jobs = '0'", "greater than or equal to 1"),
    (["reproduce", "sgd-remembers", "--seed", "3"], "unknown option '--seed'", "did you mean '--seeds'"),
    (["reproduce", "sgd-remembers", "more"], "unexpected extra argument", "`initmem reproduce --help`"),
    (["reproduec", "sgd-remembers"], "unknown command 'reproduec'", "did you mean 'reproduce'"),
    (["data", "lst"], "unknown command 'lst': choose from list, fetch, add", "did you mean 'list'"),
    (["--jobs", "3"], "unknown option '--jobs'", "--help"),
    (["clocks", "--lr", "-1"], "lr = -1", "greater than 0"),
    (["clocks", "--lr", "nan"], "lr = nan", "finite"),
    (["clocks", "--lr", "0.1", "--batch-size", "50000"], "batch_size = 50000", "2 to 40000"),
    (["data", "fetch", "cifar"], "cifar", "cifar10"),
    (["data", "add", "mine", "no/such/folder"], "no/such/folder", "exist"),
    (["results", "merge", "nothing.parquet"], "nothing.parquet", "does not exist"),
]


@pytest.mark.parametrize(("arguments", "names", "allows"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_bad_input_is_one_sentence(own_store, capsys, monkeypatch, arguments, names, allows):
    code, out, err = call(capsys, monkeypatch, *arguments)
    assert code == 2
    assert names in err and allows in err, err
    assert err.count("\n") == 1 and "Traceback" not in err and out == ""
    assert not store.results_dir().exists(), "nothing ran"


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["data"], 2), (["--help"], 0), (["reproduce", "-h"], 0)])
def test_help(capsys, monkeypatch, arguments, code):
    found, out, err = call(capsys, monkeypatch, *arguments)
    assert found == code and out.count("Usage: initmem") == 1 and err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_rerun_into_a_place_that_takes_no_files(own_store, capsys, monkeypatch, tmp_path):
    (tmp_path / "out.ipynb").symlink_to("/dev/full")
    code, out, err = call(capsys, monkeypatch, "rerun", "sgd-remembers", "-o", tmp_path / "out.ipynb")
    assert code == 2 and out == ""
    assert "out.ipynb (No space left on device)" in err and "choose another place" in err and "Traceback" not in err


def test_ctrl_c(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("initmem.report.scoreboard_text", interrupted)
    code, out, err = call(capsys, monkeypatch, "claims")
    assert code == 130 and out == "" and err.count("\n") <= 1 and "Traceback" not in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_has_no_greek(encoding):
    done = run("reproduce", "sgd-remembers", env=dict(os.environ, PYTHONIOENCODING=encoding), encoding=encoding)
    assert done.returncode == 0 and done.stderr == "" and r"\u03c3_w" in done.stdout and r"\u2713" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["data", "list"], ["--help"]])
def test_output_to_a_full_disk(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stderr == "initmem: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("closed", ["| true", ">&-"])
@pytest.mark.parametrize("arguments", ["data list", "--help"])
def test_output_that_nobody_reads(arguments, closed):
    command = f"{' '.join(map(shlex.quote, COMMAND))} {arguments} {closed}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1) and done.stderr == ""


def test_damaged_and_foreign_files_in_the_store_are_named(own_store, capsys, monkeypatch):
    store.results_dir().mkdir(parents=True)
    (store.results_dir() / "bad.parquet").write_bytes(b"PAR1 no PAR1")
    for arguments in (["claims"], ["results", "list"], ["results", "verify"]):
        code, _, err = call(capsys, monkeypatch, *arguments)
        assert code == 2 and "bad.parquet" in err


@pytest.fixture
def no_torch(tmp_path, monkeypatch):
    """An environment in which importing torch raises."""
    (tmp_path / "trap" / "torch").mkdir(parents=True)
    (tmp_path / "trap" / "torch" / "__init__.py").write_text("raise ImportError('torch must not be imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "trap"))


@pytest.mark.parametrize("statement", [
    "import initmem",
    "import initmem; initmem.read(); initmem.claim; initmem.table; initmem.sweep; initmem.run_clocks; initmem.panels",
    "from initmem import plots, report, chapters, cli, runner, data, store, metrics, clocks, claims",
    "from initmem import report; report.scoreboard_text(); report.scoreboard_page()",
    "import initmem; c = initmem.claim('sgd-remembers'); r = initmem.sweep(c.runs(preset='digits')); assert c.verdict(c.split(r)).lines",
])  # fmt: skip
def test_the_reading_half_never_imports_torch(no_torch, statement):
    code = f"import sys; {statement}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_training_without_torch_is_one_sentence(no_torch, own_store):
    done = run("reproduce", "sgd-remembers", "--seeds", 1, "-p", "epochs", 1)
    assert done.returncode == 2 and "initmem[train]" in done.stderr and "Traceback" not in done.stderr


def test_help_loads_nothing_heavy():
    code = "import sys; from initmem import cli; assert not {'torch', 'pandas', 'matplotlib', 'scipy', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "reproduce" in run("--help").stdout


def test_reproduce_trains_live_and_answers_in_json(own_store):
    done = run(
        "reproduce", "sgd-remembers", "--seeds", 1, "--fresh", "--json", "-p", "sigma_w", "[0.1, 2.5]", "-p", "epochs", 3,
        "-p", "optimizers", "sgd",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["claim"] == "sgd-remembers" and answer["outcome"] in ("partly", "not")
    rows = answer["per_sigma_w"]["sgd"]
    assert [row["σ_w"] for row in rows] == [0.1, 2.5] and all(row["n"] == 1 for row in rows)
    assert answer["clocks"]["sgd"]["steps"] == 54
    assert "epoch" in done.stderr, "a progress bar"
    assert len(store.read(shipped=False)) == 4  # SGD and, for context, momentum


def test_reproduce_prints_tables_clocks_and_verdict():
    done = run("reproduce", "sgd-remembers")
    assert done.returncode == 0, done.stderr
    for part in ("SGD + momentum", "test accuracy (%)", "paper: SGD, 300 epochs", "26.5 pp", "n = 10", "✓", "runs on"):
        assert part in done.stdout
    assert "training" not in done.stderr, "shipped rows answer"


def test_claims_lists_them_all():
    out = run("claims").stdout
    assert all(name in out for name in claims.ledger().claims) and len(claims.ledger().claims) >= 7  # the paper's, and any of ours


def test_clocks_prints_the_papers_regimes():
    out = run("clocks", "--lr", "1e-3").stdout
    line = next(line for line in out.splitlines() if "yours" in line)
    assert "0.00073 *" in line and "94" in line  # the paper's own protocol, but for half a step an epoch
    assert out.count("paper:") == 4


def test_results_commands(own_store, tmp_path):
    from test_store import record

    store.append([record(seed=seed) for seed in range(2)])
    assert "2 runs, all in order" in run("results", "verify").stdout
    assert "sgd" in run("results", "list").stdout
    assert "2 runs written" in run("results", "export", tmp_path / "all.parquet").stdout
    assert run("results", "merge", tmp_path / "all.parquet").stdout == "0 new runs\n"
    next(store.results_dir().glob("*.parquet")).unlink()
    assert run("results", "merge", tmp_path / "all.parquet").stdout == "1 new run\n"


def test_data_list_names_the_built_in_sets(own_store):
    out = run("data", "list").stdout
    assert all(name in out for name in ("digits", "cifar10", "fashion_mnist")) and "None" not in out
    [digits] = [line.split() for line in out.splitlines() if " digits " in f" {line} "]
    assert digits == "digits scikit-learn digits dbd81a01c219e669 797 1000 8×8×1 10 scikit-learn".split()


def test_papermills_own_misspelt_parameter_is_caught():
    with pytest.raises(InitmemError, match="unknown parameter 'learning_rate'"):
        chapters.check({"preset": "digits", "lr": None, "learning_rate": 0.1, "In": [""], "Out": {}, "_hidden": 1})
    assert chapters.check({"preset": "digits", "lr": 0.1, "claim": object()}).lr == 0.1


@pytest.mark.parametrize(("text", "value"), [
    ("1e-3", 0.001), ("0.1", 0.1), ("3", 3), ("[0.1, 2]", [0.1, 2]), ("None", None), ("null", None), ("adam", "adam"), ("[", "["),
    ("[1e-1, 1]", [0.1, 1]), ("[1e-1, [None, a]]", [0.1, [None, "a"]]), ("1:30", "1:30"), ("1.5:30", "1.5:30"), ("0x10", "0x10"),
    ("010", 10), ("yes", "yes"), ("{a: 1}", {"a": "1"}), ("- 1\n- 2", [1, 2]), (".inf", float("inf")), ("2026-01-01", "2026-01-01"),
    ("[" * 999, "[" * 999),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_values_on_the_command_line(text, value):
    found = cli._value(text)
    assert found == value and type(found) is type(value)


def test_pairs_are_papermills():
    assert cli.join_pairs(["-p", "lr", "-0.1", "--fresh"]) == ["-p", "lr=-0.1", "--fresh"]
    assert cli.join_pairs(["-p", "lr=1"]) == ["-p", "lr=1"]
    assert cli.join_pairs(["-p"]) == ["-p"]


def test_reproduce_all_answers_every_claim_of_the_paper_and_trains_no_run_twice(capsys, monkeypatch, tmp_path):
    """The live part, as with --fresh, with shipped rows in place of training."""
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "cache"))
    trained, real = [], runner.sweep
    monkeypatch.setattr(runner, "sweep", lambda runs, fresh, **_: trained.extend(runs) or real(runs))
    code, out, _ = call(capsys, monkeypatch, "reproduce", "all", "--seeds", 3, "--fresh")
    assert code == 0
    papers = [claim for claim in claims.ledger().claims.values() if not claim.ours]
    for number, claim in enumerate(papers, 1):
        assert f"[{number}/{len(papers)}] {claim.title}: " in out, "in the ledger's order, for all is known"
    assert "The scoreboard on digits" in out and not store.results_dir().exists()
    assert len(trained) == len(set(trained)) and set(trained) == {run for claim in papers for run in claim.runs(live=True, seeds=3)}


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_a_polite_kill_stops_a_command_in_the_background():
    """A shell without job control starts `command &` with SIGINT ignored; SIGTERM must end it all the same."""
    code = "import time\nfrom initmem import cli\ncli.app = lambda *_, **__: (print('begun', flush=True), time.sleep(60))\ncli.main()"
    command = [sys.executable, "-c", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.wait(timeout=30) == 130 and "stopped" in process.stderr.read()
