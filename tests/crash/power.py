"""A disk that can run full or lose power: ext4 on a file, mounted through a loop device. Needs root."""

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

SBIN = os.defpath + ":/usr/sbin:/sbin"
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2


class Disk:
    """An ext4 of its own, on a file, that can lose power."""

    def __init__(self, folder: Path, *, megabytes: int = 256) -> None:
        self._image = folder / "disk.img"
        self.mount_point = folder / "disk"
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", "-i", "2048", str(self._image))  # blocks run out before inodes
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mount_point))

    def unmount(self) -> None:
        try:
            _run("umount", str(self.mount_point))
        except subprocess.CalledProcessError:
            _run("umount", "--lazy", str(self.mount_point))  # so that no test leaves a disk behind
            raise

    def cut(self) -> None:
        """Stop at once: what is not on the disk by now never will be."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(fd)


def _run(command: str, *arguments: str) -> None:
    path = shutil.which(command, path=SBIN)
    assert path, f"{command} is not installed"
    subprocess.run([path, *arguments], check=True)
