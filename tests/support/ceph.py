"""A real Ceph S3 gateway on 127.0.0.1, for tests and benchmarks: up in two seconds, gone with them.

One monitor, one OSD that keeps its objects in memory, one radosgw; no manager, no authentication
between them, no systemd, nothing outside the folder given. All are killed in the end, never asked:
an OSD that is asked to stop first writes its memory into its folder.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.certificate import write_certificate
from tests.support.processes import free_port, start, tail, wait_until_it_answers

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
START_TRIES = 3
COMMANDS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool", "ceph")
STORAGE_CLASSES = ("STANDARD_IA", "GLACIER")  # beside STANDARD
USER = "test"

# Without authentication radosgw still insists on an encrypted monitor unless told `crc`; without
# tcp_nodelay each small answer waits 40 ms. Data is not checksummed on its way through loopback. A
# killed gateway is waited for when a bucket is made or removed, until its watch has timed out.
CONFIG = r"""
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms mon service mode = crc
ms mon cluster mode = crc
ms client mode = crc
ms service mode = crc
ms cluster mode = crc
ms crc data = false
run dir = {folder}/run
crash dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
pid file = {folder}/run/$name.pid
log file = {folder}/log/$name.log
mon data = {folder}/mon
mon data avail crit = 1
mon data avail warn = 2
mon allow pool size one = true
mon allow pool delete = true
mon max pg per osd = 2000
mon osd min up ratio = 0
paxos propose interval = 0.05
paxos min wait = 0.01
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = {osd_bytes}
osd crush chooseleaf type = 0
osd client watch timeout = 5
objecter tick interval = 1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{rgw_port} ssl_endpoint=127.0.0.1:{tls_port} \
    ssl_certificate={folder}/certificate.pem tcp_nodelay=1
rgw data = {folder}/run
rgw run sync thread = false
rgw enable usage log = false
rgw dynamic resharding = false
rgw override bucket index max shards = 1
rgw gc obj min wait = 1
rgw gc processor period = 1
rgw bucket quota ttl = 0
rgw user quota bucket sync interval = 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CephGateway:
    """A gateway that answers at `endpoint_url` to one user.

    Attributes:
        tls_url: where it answers over TLS, with the certificate `ca_file`.
        folder: where its configuration, its logs and the monitor's data are.
        processes: by their commands, in the order in which they were started.
    """

    endpoint_url: str
    tls_url: str
    access_key: str
    secret_key: str = field(repr=False)
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of monitor, OSD and gateway."""
        return tuple(process.pid for process in self.processes.values())

    @property
    def ca_file(self) -> Path:
        """The certificate to trust at `tls_url`."""
        return self.folder / "certificate.pem"

    def environment(self) -> dict[str, str]:
        """Return the environment variables by which boto3 and others find the credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def admin(self, *arguments: str) -> Any:  # noqa: ANN401 -- JSON
        """Run `radosgw-admin` and return the JSON it prints, or None where it prints none."""
        printed = _run("radosgw-admin", "-n", "client.rgw", *arguments, folder=self.folder)
        return json.loads(printed) if printed.lstrip().startswith(("{", "[")) else None

    def start_gateway(self) -> None:
        """Start radosgw unless it runs, from a thread that stays; wait for its first answer."""
        running = self.processes.get("radosgw")
        if running is None or running.poll() is not None:
            self._start("radosgw", "-f", "-n", "client.rgw")
        wait_until_it_answers(
            self.endpoint_url,
            self.processes["radosgw"],
            log=self.folder / "log/radosgw.out",
            timeout_s=START_TIMEOUT_S,
        )

    def kill_gateway(self) -> None:
        """Kill radosgw, whatever it is doing; what the OSD holds stays."""
        self._kill("radosgw")

    def _start(self, command: str, *arguments: str) -> None:
        self.processes[command] = start(
            [command, "-c", self.folder / "ceph.conf", *arguments],
            log=self.folder / f"log/{command}.out",
            ended_by=signal.SIGKILL,
        )

    def _kill(self, command: str) -> None:
        self.processes[command].kill()
        self.processes[command].wait()

    def _kill_all(self) -> None:
        for command in reversed(self.processes):
            self._kill(command)

    def _start_cluster(self) -> None:
        folder = self.folder
        self._start("ceph-mon", "-f", "-i", "a")
        osd = str(uuid4())
        _run("ceph", "osd", "new", osd, folder=folder)
        _run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, folder=folder)
        self._start("ceph-osd", "-f", "-i", "0")
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "1 up" not in _run("ceph", "osd", "stat", folder=folder):
            if time.monotonic() > deadline_s or self.processes["ceph-osd"].poll() is not None:
                raise RuntimeError(f"the OSD did not start:\n{tail(folder / 'log/ceph-osd.out')}")

    def _make_user(self) -> None:
        keys = ("--access-key", self.access_key, "--secret-key", self.secret_key)
        self.admin("user", "create", "--uid", USER, "--display-name", USER, *keys)
        for name in STORAGE_CLASSES:
            place = ("--placement-id", "default-placement", "--storage-class", name)
            self.admin("zonegroup", "placement", "add", "--rgw-zonegroup", "default", *place)
            pool = f"default.rgw.{name.lower()}.data"
            self.admin(
                "zone", "placement", "add", "--rgw-zone", "default", *place, "--data-pool", pool
            )


@contextmanager
def ceph_gateway(folder: Path, *, osd_bytes: int = 8 << 30) -> Iterator[CephGateway]:
    """Run a gateway while the block lasts, with everything of it in `folder`.

    Args:
        folder: an empty or new folder.
        osd_bytes: size of its disk, in memory. Some seconds after that is full, writes and deletes
            are not refused, but never answered.
    """
    gateway = _started(folder, osd_bytes=osd_bytes)
    try:
        yield gateway
    finally:
        gateway._kill_all()


def _started(folder: Path, *, osd_bytes: int) -> CephGateway:
    """Start everything; where it fails, again elsewhere: a free port may be taken meanwhile."""
    for number in itertools.count(1):
        gateway = _configured(folder / str(number), osd_bytes=osd_bytes)
        try:
            gateway._start_cluster()
            gateway._make_user()
            gateway.start_gateway()
        except RuntimeError:
            gateway._kill_all()
            if number == START_TRIES:
                raise
            logger.warning("Ceph did not start, tried again: try=%d", number, exc_info=True)
        except BaseException:
            gateway._kill_all()
            raise
        else:
            return gateway
    raise AssertionError


def _configured(folder: Path, *, osd_bytes: int) -> CephGateway:
    rgw_port, tls_port = free_port(), free_port()
    _write_config(
        folder, osd_bytes=osd_bytes, mon_port=free_port(), rgw_port=rgw_port, tls_port=tls_port
    )
    return CephGateway(
        endpoint_url=f"http://127.0.0.1:{rgw_port}",
        tls_url=f"https://127.0.0.1:{tls_port}",
        access_key=secrets.token_hex(10).upper(),
        secret_key=secrets.token_hex(20),
        folder=folder,
    )


def _write_config(
    folder: Path, *, osd_bytes: int, mon_port: int, rgw_port: int, tls_port: int
) -> None:
    for name in ("mon", "osd", "run", "log"):
        (folder / name).mkdir(parents=True)
    fsid = str(uuid4())
    config = CONFIG.format(
        fsid=fsid,
        folder=folder,
        osd_bytes=osd_bytes,
        mon_port=mon_port,
        rgw_port=rgw_port,
        tls_port=tls_port,
    )
    (folder / "ceph.conf").write_text(config)
    write_certificate(folder / "certificate.pem")
    monmap = folder / "monmap"
    monitor = ("--addv", "a", f"[v2:127.0.0.1:{mon_port}]")
    _run("monmaptool", "--create", "--fsid", fsid, *monitor, str(monmap), folder=folder)
    _run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(monmap), folder=folder)


def _run(command: str, *arguments: str, folder: Path) -> str:
    """Run a command of Ceph to its end and return what it prints."""
    done = subprocess.run(
        [command, *arguments],
        env={**os.environ, "CEPH_CONF": str(folder / "ceph.conf")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"[-4000:]
        raise RuntimeError(f"{command} {' '.join(arguments)} ended with {done.returncode}:\n{said}")
    return done.stdout
