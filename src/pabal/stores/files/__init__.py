"""The store in a directory: a file for each message, its state the folder it lies in."""

from pabal.stores.files.store import FileStore

__all__ = ["FileStore"]
