"""The Dagster UI in a real, headless Chromium; also takes the screenshots of the README.

`python -m tests.support.browser RUN@STEP FOLDER` opens the UI on the DAGSTER_HOME of the
environment and writes its pictures into FOLDER.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 120
PAGE_S = 60


@contextmanager
def user_interface(environment: dict[str, str]) -> Iterator[str]:
    """Start the web server on a free port of 127.0.0.1; yield its address, stop it by its PID."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-w", str(ROOT / "workspace.yaml")]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=60)


@contextmanager
def chromium(folder: Path, *, width: int = 1500, height: int = 950) -> Iterator[webdriver.Chrome]:
    """Open a browser with an empty profile in `folder`, which talks to nobody but the page."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-dev-shm-usage",
        f"user-data-dir={folder}",
        f"window-size={width},{height}",
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver: webdriver.Chrome, address: str, *texts: str) -> str:
    """Open a page, wait until it shows all of `texts`, and return everything it shows.

    Raises:
        AssertionError: the page never showed them; the message holds what it showed.
    """
    driver.get(address)

    def shown() -> str:
        return driver.find_element(By.TAG_NAME, "body").text

    try:
        WebDriverWait(driver, PAGE_S).until(lambda _: all(text in shown() for text in texts))
    except TimeoutException:
        missing = [text for text in texts if text not in shown()]
        raise AssertionError(f"{address} lacks {missing}; it shows: {shown()}") from None
    return shown()


def lineage_page(address: str) -> str:
    """Return the address of the global lineage graph."""
    return f"{address}/asset-groups"


def partition_page(address: str, asset: str, partition: str) -> str:
    """Return the address of one partition of an asset."""
    return f"{address}/assets/{asset}?view=partitions&partition={urllib.parse.quote(partition)}"


def _wait_until_up(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the web server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/server_info", timeout=5):  # noqa: S310 -- our own
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"the web server did not answer at {address} within {START_S} s")


def main(partition: str, folder: Path) -> None:
    """Take the pictures of the README."""
    folder.mkdir(parents=True, exist_ok=True)
    with user_interface({}) as address, chromium(folder / ".profile") as driver:
        open_page(driver, lineage_page(address), "verified_checkpoint", "production_model")
        time.sleep(5)  # the graph is laid out and moved into place
        driver.save_screenshot(str(folder / "lineage.png"))
        page = partition_page(address, "evaluated_checkpoint", partition)
        open_page(driver, page, partition, "held_out_loss")
        time.sleep(2)
        driver.save_screenshot(str(folder / "checkpoint.png"))
    shutil.rmtree(folder / ".profile")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
