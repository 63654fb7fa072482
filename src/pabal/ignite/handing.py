"""From a lease to a file in an agent's hands, and back: what is given back was no attempt."""

from __future__ import annotations

from pabal.delivery import Delivery
from pabal.errors import InvalidInput
from pabal.ignite.workspace import Workspace, counted
from pabal.message import replace
from pabal.store import Failure, FailureCode, Retry, Settlement

GIVEN_BACK = "GIVEN_BACK"  # in the place of a failure: the attempt that it stands for is not counted


def hand_over(workspace: Workspace, delivery: Delivery) -> str | None:
    """Return the file that the agent is told of; None if there is none. A message that cannot be a file is buried."""
    receipt, papered = delivery.receipt, workspace.papered
    if papered is None:
        names = workspace.held_names(receipt.queue)
        found = next((name for name, slot in names if slot.token == receipt.token), None)
        return None if found is None else f"{workspace.processed(receipt.queue)}/{found}"
    try:
        return papered.papers.write(receipt, delivery.message, delivery.attempt, delivery.failure)
    except InvalidInput as exc:
        delivery.fail(FailureCode.VALIDATION_ERROR, f"it cannot be written as a file: {exc}", final=True)
        return None


def give_back(workspace: Workspace, delivery: Delivery) -> None:
    """Let a message that nobody has begun, or could finish, be given out again; that it was in hand does not count."""
    before = delivery.failure or Failure(GIVEN_BACK, "the team was stopped", workspace.clock.now())
    before = replace(before, attempt=counted(delivery.attempt, delivery.failure) - 1)
    workspace.store.settle([Settlement(delivery.receipt, Retry(0.0, before))])
