"""A JupyterLab of its own, and a headless Chromium that looks at it.

Everything lives in one temporary directory: settings, kernels, trust, browser profile. The
server listens on the loopback interface, on a free port, with a token of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PACKAGE = Path(__file__).parents[2]
START = 60  # seconds that JupyterLab may take to start, on a machine under load


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium with a fresh profile."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt install chromium")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def watched(browser):
    """Opens a page; an error in any script on it fails the test that closes it."""

    @contextmanager
    def opened():
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        errors = []
        page.on("pageerror", lambda error: errors.append(error))
        yield page
        page.close()
        assert not errors

    return opened


@pytest.fixture
def page(watched):
    """A new page, for one test."""
    with watched() as page:
        yield page


class Lab:
    """A running JupyterLab: `open` shows a notebook in it."""

    def __init__(self, directory, url, token):
        self.directory, self.url, self.token = directory, url, token

    def open(self, page, name, cells, theme="JupyterLab Light"):
        """Save the cells as a notebook that nobody has trusted yet, and open it."""
        notebook = nbformat.v4.new_notebook(cells=cells)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, self.directory / "notebooks" / name)
        themes = self.directory / "settings/@jupyterlab/apputils-extension"
        themes.mkdir(parents=True, exist_ok=True)
        (themes / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
        (themes / "notification.jupyterlab-settings").write_text(
            json.dumps({"fetchNews": "false", "checkForUpdates": False})
        )
        page.goto(f"{self.url}lab/tree/{name}?reset&token={self.token}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()

    def outputs(self, page):
        """The outputs of each code cell, as the notebook would save them, by the cell's id."""
        return page.evaluate(
            """() => Object.fromEntries(
                Array.from(jupyterapp.shell.currentWidget.content.model.cells)
                    .filter(cell => cell.type === "code")
                    .map(cell => [cell.id, cell.outputs.toJSON()]))"""
        )

    def run_all(self, page):
        """Run every cell, as the menu does, and wait until the kernel is done."""
        page.evaluate(
            """async () => {
                const app = window.jupyterapp;
                const session = app.shell.currentWidget.sessionContext;
                await session.ready;
                await app.commands.execute("notebook:run-all-cells");
            }"""
        )


@pytest.fixture(scope="session")
def jupyterlab(browser, tmp_path_factory):
    """A JupyterLab server with its own settings, which ends with the tests."""
    directory = tmp_path_factory.mktemp("lab")
    directory.chmod(0o700)
    (directory / "notebooks").mkdir()
    own = {
        "HOME": "home",
        "IPYTHONDIR": "ipython",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    environment = os.environ | {name: str(directory / path) for name, path in own.items()}
    environment["PYTHONPATH"] = str(PACKAGE)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    command += ["--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"]
    with open(directory / "log", "w") as log:
        server = subprocess.Popen(
            command, cwd=directory / "notebooks", env=environment, stdout=log, stderr=log
        )
    try:
        found = _wait_for_server(server, directory)
        yield Lab(directory, found["url"], found["token"])
    finally:
        server.terminate()  # the server ends its kernels
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for_server(server, directory):
    """What the server writes about itself once it listens: its address and its token."""
    end = time.monotonic() + START
    while time.monotonic() < end and server.poll() is None:
        for path in (directory / "runtime").glob("jpserver-*.json"):
            return json.loads(path.read_text())
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{(directory / 'log').read_text()[-2000:]}")
