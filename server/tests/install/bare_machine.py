"""A bare Debian machine: a new tree of minimal packages, in namespaces of its own, with systemd as its first process.

    with bare_machine(folder, wheels, packages=["postgresql"]) as machine:
        with machine.shell() as shell:
            shell.run("apt-get update")

Several machines have copies of one tree, and a network (`machine_network.py`):

    make_tree(tree, packages)
    with booted(copied_tree(tree, folder / "a", wheels), "a") as machine:
        ...

A machine has no network but its own loopback, until it gets a cable. What it may install is in folders that its apt and
pip use as their mirrors: the named packages of Debian with all they need, and the wheels. It can't change the settings
of the kernel, which it shares with others. Needs root and mmdebstrap.
"""

import hashlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from server.tests.built_packages import users_environment
from server.tests.processes import wait_for

HOST = "sql.example"
_BOOT_LIMIT_S = 120
# What a machine has when its installer is done, and that a container would not need.
_BARE = "systemd-sysv,dbus,iproute2,hostname"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
mount -t tmpfs -o mode=755 tmpfs run
for device in null zero full random urandom tty; do
    cp -a "/dev/$device" dev/
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
hostname "$2"
ip link set lo up
pivot_root . mnt
cd /
umount -l /mnt
exec env -i container=plainsql-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""
# Each systemd owns the control group that its namespace begins with.
_IN_GROUP = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
_UNSHARE = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    command: str
    output: str
    exit_code: int


class Shell:
    """A shell of root on the machine. Commands share its variables and its folder, as a person's do."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin
        assert process.stdout
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def run(self, command: str) -> Outcome:
        """Types a command and waits for its end."""
        mark = f"end-{secrets.token_hex(8)}"
        self._input.write(f'{command} </dev/null\necho "{mark} $?"\n')
        self._input.flush()
        lines: list[str] = []
        for line in self._output:
            before, found, code = line.partition(mark)
            lines.append(before if found else line)
            if found:
                return Outcome(command, "".join(lines), int(code))
        raise AssertionError(f"the shell ended during {command!r}: {''.join(lines)}")


@dataclass(frozen=True)
class Machine:
    """A machine that has booted."""

    tree: Path
    first_pid: int

    def inside(self, *command: str) -> list[str]:
        """The command that runs another one on the machine."""
        enter = ["nsenter", f"--target={self.first_pid}", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup"]
        return [*enter, "--root", "env", "-i", "-C", "/root", "HOME=/root", "TERM=dumb", _PATH, *command]

    def ask(self, *command: str) -> str:
        """What a command prints that must succeed."""
        ended = subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        process = subprocess.Popen(
            self.inside("bash", "--noprofile", "--norc"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            yield Shell(process)
        finally:
            process.kill()
            process.wait()
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            process.stdout.close()

    def is_up(self) -> bool:
        asked = subprocess.run(
            self.inside("systemctl", "is-system-running"), capture_output=True, text=True, check=False
        )
        return asked.stdout.strip() in ("running", "degraded")


@contextmanager
def bare_machine(folder: Path, wheels: Path, packages: Sequence[str]) -> Iterator[Machine]:
    """A machine for the length of the block, with its tree in a folder."""
    tree = folder / "tree"
    make_tree(tree, packages)
    _prepare(tree, wheels, HOST)
    with booted(tree, HOST) as machine:
        yield machine


@contextmanager
def booted(tree: Path, name: str) -> Iterator[Machine]:
    """A machine with this tree, for the length of the block. It ends as with a power cut."""
    log = tree.with_name(f"{tree.name}.log")
    with _control_group() as group, log.open("wb") as output:
        enter = ["sh", "-c", _IN_GROUP, "sh", str(group)]
        process = subprocess.Popen(
            [*enter, *_UNSHARE, "sh", "-c", _START, "sh", str(tree), name], stdout=output, stderr=output
        )
        try:
            machine = Machine(tree, _first_pid(process, log))
            wait_for(machine.is_up, _BOOT_LIMIT_S, log.read_text)
            yield machine
        finally:
            # With the first process of a namespace, all others of it end.
            process.kill()
            process.wait()


@contextmanager
def _control_group() -> Iterator[Path]:
    unified = Path("/sys/fs/cgroup/unified")
    root = unified if unified.exists() else unified.parent
    group = root / f"plainsql-test-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        yield group
    finally:
        wait_for(lambda: "populated 0" in (group / "cgroup.events").read_text(), _BOOT_LIMIT_S, str)
        for each in sorted(group.rglob("*/"), reverse=True):
            each.rmdir()
        group.rmdir()


def _first_pid(process: "subprocess.Popen[bytes]", log: Path) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end_s = time.monotonic() + _BOOT_LIMIT_S
    while time.monotonic() < end_s:
        assert process.poll() is None, log.read_text()
        pids = children.read_text().split()
        if pids and Path(f"/proc/{pids[0]}/comm").read_text().strip() == "systemd":
            return int(pids[0])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def _run(*command: str | Path) -> None:
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**users_environment(), "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout


def make_tree(tree: Path, packages: Sequence[str]) -> None:
    """A tree of minimal packages, whose apt can install these."""
    _run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={_BARE}", "bookworm", tree)
    (tree / "etc/machine-id").write_text("")
    _mirror_packages(tree, packages)


def copied_tree(tree: Path, copy: Path, wheels: Path) -> Path:
    """A copy of a tree, for a machine with the name of its folder, whose pip can install the wheels."""
    _run("cp", "--archive", tree, copy)
    _prepare(copy, wheels, copy.name)
    return copy


def _prepare(tree: Path, wheels: Path, name: str) -> None:
    (tree / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n")
    (tree / "etc/hostname").write_text(f"{name}\n")
    _mirror_wheels(tree, wheels)


def _mirror_packages(tree: Path, packages: Sequence[str]) -> None:
    """Downloads packages with the tree's own apt, and makes the folder of what it got its only source."""
    resolver = tree / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    shutil.copy("/etc/resolv.conf", resolver)
    _run("chroot", tree, "apt-get", "update")
    _run("chroot", tree, "apt-get", "install", "--download-only", "--yes", *packages)
    resolver.write_text("")
    mirror = tree / "srv/debian"
    mirror.mkdir()
    for package in sorted((tree / "var/cache/apt/archives").glob("*.deb")):
        shutil.move(package, mirror / package.name)
    (mirror / "Packages").write_text("\n".join(_entry(package) for package in sorted(mirror.glob("*.deb"))))
    _run("chroot", tree, "apt-get", "clean")
    shutil.rmtree(tree / "var/lib/apt/lists")
    shutil.rmtree(tree / "etc/apt/sources.list.d", ignore_errors=True)
    (tree / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/srv/debian ./\n")


def _entry(package: Path) -> str:
    """The paragraph of an index of packages."""
    fields = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    return f"{fields.rstrip()}\nFilename: ./{package.name}\nSize: {package.stat().st_size}\nSHA256: {digest}\n"


def _mirror_wheels(tree: Path, wheels: Path) -> None:
    shutil.copytree(wheels, tree / "srv/wheels")
    (tree / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /srv/wheels\n")
    os.chmod(tree / "etc/pip.conf", 0o644)
