"""What a queue does not take, told alike by every store."""

from pabal.errors import TooLarge
from pabal.store import Draft


def too_large(draft: Draft, size: int) -> TooLarge:
    """Return the error for a message whose document has so many bytes."""
    queue, most = draft.queue, draft.terms.max_bytes
    return TooLarge(
        f"{queue} takes messages of {most} bytes at most, encoded; {draft.message.id} has {size}: "
        f"`pabal policy set {queue} --set maxBytes={size}` lets it in"
    )
