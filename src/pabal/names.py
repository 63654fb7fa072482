"""Names, ids and URLs as users give them, checked in one place.

Names and ids are ASCII only, so that no two look alike, and safe as a file name as they stand. A name in another script
is written in ASCII by `ascii_name` and shown by `shown_name`. URLs are shown in errors without the secrets that may be
in them.
"""

import re
import socket
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pabal.errors import InvalidName, InvalidUrl

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,199}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:-]*(?:\.[A-Za-z0-9_:-]+)*", re.ASCII)
_LONGEST_ID = 128
_FOREIGN = "xn__"
_LONGEST_FOREIGN = 40  # characters; in ASCII they become a few times as many
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)", re.ASCII)
_PATH_ONLY = frozenset({"sqlite", "file", "hybrid", "mailbox"})  # schemes whose URLs hold a path and no credentials
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*)(?::([0-9]*))?", re.ASCII)
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\[\]:]+", re.ASCII)
_OPTION = re.compile(r"[a-z][a-z_.-]{1,40}|[-+]?[0-9.]{1,20}", re.ASCII)
_KEYWORD = re.compile(r"(?:^|\s)\w+\s*=")  # of the other form of a PostgreSQL address: `host=h user=u password=p`
_CREDENTIALS = re.compile(r"(?:^|/)[^/:@]*:[^@]*@")
_NO_URL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST_URL = 4096
_LONGEST_FILE_NAME = 255
_ENCODED = "write @ as %40, / as %2F, : as %3A, ? as %3F and # as %23 in a password"


@lru_cache(maxsize=4096)
def check_name(name: str, what: str = "queue") -> str:
    """Return the name if it is legal for a queue, consumer or target; raise InvalidName if not."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(f"{what} name must be 1-200 of letters, digits, '-', '_' and inner dots; found {name!r:.80}")
    return name


def ascii_name(name: str) -> str:
    """Return a name of letters of any script in ASCII: `xn__` and its Punycode (RFC 3492) with '_' instead of '-'.

    Any other text is returned as it is, for `check_name` to judge.
    """
    if name.isascii() or len(name) > _LONGEST_FOREIGN:
        return name
    normal = unicodedata.normalize("NFC", name)
    if not f"_{normal}".isidentifier():
        return name
    return f"{_FOREIGN}{normal.encode('punycode').decode().replace('-', '_')}"


def shown_name(name: str) -> str:
    """Return a name that `ascii_name` made as it was written; any other name as it is."""
    if not name.startswith(_FOREIGN):
        return name
    basic, delimiter, rest = name.removeprefix(_FOREIGN).rpartition("_")
    try:
        shown = f"{basic}{'-' if delimiter else ''}{rest}".encode().decode("punycode")
    except ValueError:
        return name
    return shown if ascii_name(shown) == name else name


def check_id(id: str) -> str:
    """Return the message id if it is legal; raise InvalidName if not."""
    if not isinstance(id, str) or len(id) > _LONGEST_ID or not _ID.fullmatch(id):
        raise InvalidName(
            f"message id must be 1-128 of letters, digits, '-', '_', ':' and inner dots; found {id!r:.80}"
        )
    return id


def is_id(text: str) -> bool:
    """Return whether a text is a legal message id."""
    return len(text) <= _LONGEST_ID and _ID.fullmatch(text) is not None


def local_name(number: int) -> str:
    """Return a legal name from this host and a number, such as a process id."""
    host = re.sub(r"[^A-Za-z0-9_]+", "-", socket.gethostname()).strip("-")
    return f"{host[:100] or 'host'}-{number}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` if a known name is close to the word, else an empty string."""
    from difflib import get_close_matches  # slow to import, and seldom needed

    near = get_close_matches(word[:100], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def no_queue(name: str, names: Sequence[str]) -> str:
    """Return an error text for a queue that does not exist, with the queue that may be meant."""
    if hint := did_you_mean(name, names):
        return f"no queue {name}; {hint}"
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"no queue {name}; there are {listed}" if names else f"no queue {name}; the store is empty"


def suggestion(name: str, known: list[str]) -> str:
    """Return the known name that was probably meant, or else all known names, as a hint for an error."""
    return did_you_mean(name, known) or f"known are {', '.join(known)}"


# URLs


def split_url(url: str) -> SplitResult:
    """Split a URL; raise InvalidUrl if it cannot be one."""
    if len(url) > _LONGEST_URL or _NO_URL.search(url):
        raise InvalidUrl(f"a URL is at most {_LONGEST_URL} characters of text without control characters")
    try:
        return urlsplit(url)
    except ValueError as exc:
        raise InvalidUrl(f"{shown_url(url)} is no URL: brackets belong around an IPv6 address only") from exc


def shown_url(url: str) -> str:
    """Return a URL as errors and logs may show it: its path if it is local, else no more than its host.

    Where a password may end somewhere else than it seems to, only the scheme is shown.
    """
    found = _SCHEME.match(url)
    scheme = found[0].lower() if found else ""
    rest = url[len(scheme) + 1 :] if scheme else url
    hidden = f"{scheme}:…" if scheme else "…"
    if not scheme and _KEYWORD.search(url):
        text = hidden
    elif "@" not in url and (scheme in _PATH_ONLY and (rest[:2] != "//" or rest[:3] == "///") or ":" not in url):
        path = re.split("[?#]", rest)[0]
        text = f"{scheme}:{path}" if scheme else path
    elif rest[:2] == "//":
        authority = re.split("[/?#]", rest[2:])[0]
        inside = authority.count("@")
        if inside == url.count("@") <= 1:
            host = _HOST.match(authority.rpartition("@")[2])
            text = f"{scheme}://{host[0]}" if host else hidden
        else:
            text = hidden
    else:
        text = hidden
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}…"


def may_hold_password(text: str) -> bool:
    """Return whether a text that should be a path may be a URL, or another address with a password."""
    return "://" in text or bool(_KEYWORD.search(text) or _CREDENTIALS.search(text))


def path_in(text: str) -> str:
    """Return the path in a part of a URL; raise InvalidUrl for one that no file can have, or that holds a password."""
    if _CREDENTIALS.search(text):
        raise InvalidUrl("a local path was expected, and this looks like USER:PASSWORD@HOST: write @ in a path as %40")
    try:
        path = unquote(text, errors="strict")
    except UnicodeDecodeError as exc:
        raise InvalidUrl("the codes after % in a URL must be UTF-8") from exc
    if "\0" in path:
        raise InvalidUrl("a path holds no zero byte (%00)")
    if max(len(name.encode()) for name in path.split("/")) > _LONGEST_FILE_NAME:
        raise InvalidUrl(f"a name in a path has at most {_LONGEST_FILE_NAME} bytes")
    return path


def options_in(parts: SplitResult) -> list[tuple[str, str]]:
    """Return the options after the question mark; raise InvalidUrl for one with a zero byte."""
    found = parse_qsl(parts.query, keep_blank_values=True)
    if any("\0" in name or "\0" in text for name, text in found):
        raise InvalidUrl("an option holds no zero byte (%00)")
    return found


def option_text(text: str) -> str:
    """Return the name or the value of an option as errors may show it: it may be a part of a password."""
    return repr(text) if _OPTION.fullmatch(text) else "a text with other characters"


def check_servers(parts: SplitResult) -> None:
    """Raise InvalidUrl unless this is `//[user[:password]@]host[:port][,host…]`, perhaps with a path and options.

    A password with a character that ends this part would go on in the path, and into errors.
    """
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise InvalidUrl(f"the URL of a server has one @, before the host, and no #: {_ENCODED}")
    user, _, servers = parts.netloc.rpartition("@")
    for server in servers.split(","):
        found = _SERVER.fullmatch(server)
        if found is None or found[1] and not 1 <= int(found[1][:6]) <= 65535:
            hint = "" if user else f"; a password stands in USER:PASSWORD@ before the host: {_ENCODED}"
            raise InvalidUrl(f"the port of a server must be a number of 1 to 65535{hint}")
