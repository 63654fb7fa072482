"""The store in a directory: one file per message, whose folder is its state.

`FileStore` is the store. The rest of the face is for applications that share its directories: the grammar of file names
(`Names`, `Slot`, and the texts that may stand in a name), and the reasons that the store leaves beside its files.
"""

from pabal.stores.files.names import Names, Slot, safe_name, short_boot, short_token
from pabal.stores.files.read import corrupt_reason, read_failure
from pabal.stores.files.store import FileStore

__all__ = [
    "FileStore",
    "Names",
    "Slot",
    "corrupt_reason",
    "read_failure",
    "safe_name",
    "short_boot",
    "short_token",
]
