"""A disk that can run full or lose power: a file system on a file, mounted through a loop device. Needs root."""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

SBIN = os.defpath + ":/usr/sbin:/sbin"
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
_CLONE = 0x40049409
# How each file system is made, with the least megabytes that it takes.
FILE_SYSTEMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ext4": (0, ("mkfs.ext4", "-q", "-F", "-i", "2048")),  # blocks run out before inodes
    "xfs": (320, ("mkfs.xfs", "-q", "-f")),
    "btrfs": (256, ("mkfs.btrfs", "-q", "-f")),
}
# With its log, the btrfs of Linux 6.18 does not survive cuts between renames: it finds a file in two directories, or a
# name without a file, or cannot be mounted ("Failed to recover log tree"). See docs/guarantees.md.
_OPTIONS = {"btrfs": "loop,notreelog"}


class Disk:
    """A file system of its own, on a file, that can lose power.

    ext4 and xfs can be told to stop at once. btrfs cannot: its file lies on an xfs, and a cut is a clone of that file,
    taken in one step, which is mounted in its place.
    """

    def __init__(self, folder: Path, *, megabytes: int = 256, kind: str = "ext4") -> None:
        least, make = FILE_SYSTEMS[kind]
        self._options = _OPTIONS.get(kind, "loop")
        megabytes = max(megabytes, least)
        self._below = Disk(_made(folder / "below"), megabytes=3 * megabytes, kind="xfs") if kind == "btrfs" else None
        self._image = (self._below.mount_point if self._below else folder) / "disk.img"
        self._clone = self._image.with_name("clone.img")
        self.mount_point: Path = _made(folder / "disk")
        with self._image.open("wb") as image:
            image.truncate(megabytes << 20)
        _run(*make, str(self._image))
        self.mount()

    def mount(self) -> None:
        if self._clone.exists():
            self._clone.rename(self._image)
            _run("btrfs", "device", "scan", "--forget")  # else the kernel takes the clone for a second device
        _run("mount", "-o", self._options, str(self._image), str(self.mount_point))

    def unmount(self) -> None:
        try:
            _run("umount", str(self.mount_point))
        except subprocess.CalledProcessError:
            _run("umount", "--lazy", str(self.mount_point))  # so that no test leaves a disk behind
            raise
        # A mount namespace that was made meanwhile has a copy of the mount, and what is mounted again while that lives
        # is the disk as it was before: without power.
        end = time.monotonic() + 30.0
        while _run("losetup", "-j", str(self._image)):
            assert time.monotonic() < end, f"{self._image} is still mounted in another mount namespace"
            time.sleep(0.01)

    def close(self) -> None:
        try:
            self.unmount()
        finally:
            if self._below:
                self._below.close()

    def cut(self) -> None:
        """Stop at once: what is not on the disk by now never will be."""
        if self._below:
            with self._image.open("rb") as image, self._clone.open("xb") as clone:
                fcntl.ioctl(clone.fileno(), _CLONE, image.fileno())
            return
        fd = os.open(self.mount_point, os.O_RDONLY)
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(fd)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _run(command: str, *arguments: str) -> bytes:
    path = shutil.which(command, path=SBIN)
    assert path, f"{command} is not installed"
    return subprocess.run([path, *arguments], check=True, stdout=subprocess.PIPE).stdout
