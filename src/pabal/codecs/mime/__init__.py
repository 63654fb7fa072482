"""Messages as MIME files with a YAML body, in the form of the IGNITE protocol."""

from pabal.codecs.mime.codec import MimeCodec

__all__ = ["MimeCodec"]
