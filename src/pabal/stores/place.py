"""Which places a store refuses: locks and flushes do not hold on network file systems, nor on Windows."""

import os
import sys
from pathlib import Path

from pabal.errors import StoreRefused

_NETWORK = frozenset(
    "9p afs ceph cifs coda fuse.sshfs fuse.glusterfs fuse.s3fs fuse.rclone gfs2 glusterfs lustre ncpfs nfs nfs4 ocfs2 "
    "smb3 smbfs vboxsf".split()
)


def require_local(path: Path) -> None:
    """Raise StoreRefused if the path lies where a store cannot keep its promises."""
    if sys.platform == "win32":
        raise StoreRefused("Windows is not supported: use Linux, or WSL with a path on its own disk")
    kind = file_system(path)
    if kind in _NETWORK:
        raise StoreRefused(f"{path} is on a {kind} file system, where locks and flushes do not hold: use a local disk")


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of the file system that holds the path, or '' where the system does not say."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    place = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        _, mounted, found, *_ = line.split(" ")
        mounted = mounted.encode("utf-8", "surrogateescape").decode("unicode_escape")
        # A later mount on the same directory hides the earlier one.
        if len(mounted) >= len(best) and (place + "/").startswith(mounted.rstrip("/") + "/"):
            best, kind = mounted, found
    return kind
