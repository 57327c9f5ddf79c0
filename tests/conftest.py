"""The book, built once for every test that looks at it."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis
import pytest

# Machines differ in speed, and a test must not depend on it.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")

ROOT = Path(__file__).resolve().parents[1]
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def build_book(source: Path, output: Path, no_torch: bool = False) -> subprocess.CompletedProcess:
    """Build strictly from a clean state, in a process of its own; with `no_torch`, one in which torch cannot be had."""
    environment = dict(os.environ, PYTHONUTF8="1")
    if no_torch:
        trap = output / "no-torch" / "torch"
        trap.mkdir(parents=True)
        (trap / "__init__.py").write_text('raise ImportError("torch must not be imported by the book")\n')
        path = [str(trap.parent), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    start = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", start, "build", str(source), "--path-output", str(output)]
    return subprocess.run(
        [*command, "-W", "-n", "--keep-going"],
        env=environment, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
    )


@pytest.fixture(scope="session")
def built_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the book's pages. Nothing is taken from an earlier build, and importing torch fails."""
    pytest.importorskip("jupyter_book", reason="the book's requirements are not installed")
    output = tmp_path_factory.mktemp("book")
    result = build_book(ROOT, output, no_torch=True)
    if result.returncode:
        pytest.fail("the strict build failed:\n" + result.stdout[-6000:], pytrace=False)
    return output / "_build" / "html"


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    from pdf import browser_path

    if not (path := browser_path()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium: set CHROMIUM to its path")
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=path, args=ARGUMENTS)


@pytest.fixture(scope="session")
def site(built_book):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=built_book))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def own_store(tmp_path, monkeypatch) -> Path:
    """An empty store in place of the reader's own and of the shipped one."""
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "cache"))
    (tmp_path / "shipped").mkdir()
    monkeypatch.setenv("INITMEM_SHIPPED", str(tmp_path / "shipped"))
    return tmp_path
