"""System calls that Python has no names for: exchange two files, never replace one."""

import ctypes
import errno
import os

_libc = ctypes.CDLL(None, use_errno=True)
_HERE = -100  # AT_FDCWD
_NOREPLACE, _EXCHANGE = 1, 2


def exchange(one: str, other: str) -> None:
    """Let two files change places as one step; FileNotFoundError if either is not there."""
    _renameat2(one, other, _EXCHANGE)


def rename_new(source: str, target: str) -> None:
    """Rename to a name that is free; FileExistsError if it is not."""
    try:
        _renameat2(source, target, _NOREPLACE)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # A file system without that flag: a second name, then one less.
        os.link(source, target, follow_symlinks=False)
        os.unlink(source)


def _renameat2(source: str, target: str, flags: int) -> None:
    call = getattr(_libc, "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, "this system has no renameat2")
    if call(_HERE, os.fsencode(source), _HERE, os.fsencode(target), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, target)
