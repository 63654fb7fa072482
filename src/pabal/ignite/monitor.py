"""The monitor: gives each agent its next message, one at a time, all agents at once up to a limit.

It is woken by files that arrive and by commands that end, and sleeps in between, in one thread. What it has given away
lies in the folders: a monitor that was killed is followed by one that goes on from there.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pabal.errors import PabalError, StoreError
from pabal.ignite import bells, wakes
from pabal.ignite.bells import Bells
from pabal.ignite.handing import give_back
from pabal.ignite.intake import Intake
from pabal.ignite.layout import DEAD_LETTERS
from pabal.ignite.memory import Ledger
from pabal.ignite.turns import Post
from pabal.ignite.wakes import Surroundings, Wake
from pabal.ignite.workers import Elsewhere
from pabal.ignite.workspace import Held, Workspace
from pabal.runtime.wake import FdWatch
from pabal.store import State

log = logging.getLogger("pabal.ignite")

_SWEEP_EVERY = 30.0  # seconds
_SORRY = 1.0  # seconds before an agent is looked at again whose files made trouble
_FACTS_KEPT = 30 * 86400.0


class Monitor:
    """A task of the service: gives messages to agents and takes note of how that ends."""

    def __init__(
        self, workspace: Workspace, *, watch: FdWatch, folder: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.workspace = workspace
        self._watch = watch
        self._clock = workspace.clock
        self._place = Surroundings(workspace.root, folder, variables or {})
        self._wakes: dict[str, Wake] = {}
        self._ledger = Ledger(lambda: workspace.memory, self._clock.boot)
        self._elsewhere = Elsewhere(watch)
        self._bells = Bells(workspace, watch)
        self.intake = Intake(workspace)
        self.posts: dict[str, Post] = {}
        self._sweep_at = float("-inf")
        if workspace.papered is not None:
            workspace.papered.claim(f"{socket.gethostname()}:{workspace.root}", self._clock.now())
        self._fill()
        self._adopt()

    # Agents that come and go

    def reload(self) -> None:
        """Go by the team file as it stands; agents that are at work finish their turns."""
        before = self.workspace.team
        try:
            self.workspace.reload()
            self._fill()
        except StoreError:
            raise
        except PabalError as exc:
            self.workspace.team = before
            log.error("team not reloaded: %s", exc)
        else:
            log.info("team reloaded", extra={"pabal": {"agents": list(self.workspace.team.agents)}})

    def _fill(self) -> None:
        team = self.workspace.team
        made = {kind: wakes.load(kind) for kind in {about.wake for about in team.agents.values()}}
        self.workspace.prepare()
        for name, about in team.agents.items():
            post = self.posts.get(name)
            if post is not None and post.about == about:
                continue
            if post is not None and post.turn is not None:
                continue  # taken over at the next reload, when its turn is over
            if about.wake not in self._wakes:
                self._wakes[about.wake] = made[about.wake](self._place)
            self.posts[name] = Post(
                self.workspace,
                name,
                about,
                self._wakes[about.wake],
                ledger=self._ledger,
                watch=self._watch,
                elsewhere=self._elsewhere,
            )
            self._bells.watch(name)
        for name in [name for name, post in self.posts.items() if name not in team.agents and post.turn is None]:
            del self.posts[name]

    def _adopt(self) -> None:
        """Go on with what agents had in hand when the monitor before this one ended."""
        papered, new = self.workspace.papered, set[str]()
        for name, post in self.posts.items():
            if papered is None:
                self.intake.set_aside_unreadable(name)
            else:
                new = papered.catch_up(name)
            for held in self.workspace.held(name):
                if post.turn is None:
                    post.adopt(held, woken=held.receipt.token not in new and self._was_woken(held))
                else:
                    give_back(self.workspace, self.workspace.delivery(held))

    def _was_woken(self, held: Held) -> bool:
        try:
            facts = self.workspace.memory.facts_of(held.message.id)
        except StoreError:
            return False  # to be told twice is better than never
        here = (held.receipt.queue, held.attempt)
        return any((fact.queue, fact.attempt) == here and fact.woken_at is not None for fact in facts)

    # One pass

    def step(self) -> None:
        """Hear who rang, see whose turn has ended, give out what waits."""
        now = self._clock.boot()
        self._hear()
        for post in self.posts.values():
            with self._alone(post):
                post.check()
        self.intake.look_again(now)
        self._serve(now)
        if now >= self._sweep_at:
            self._sweep(now)
        self._ledger.flush()

    def next_due(self) -> float | None:
        now = self._clock.boot()
        due = [seconds for post in self.posts.values() if (seconds := post.next_due()) is not None]
        if self._free() > 0:
            due += [max(0.0, post.look_at - now) for post in self.posts.values() if post.turn is None]
        due += [seconds for seconds in (self._ledger.next_due(), self.intake.next_due(now)) if seconds is not None]
        return min([*due, max(0.0, self._sweep_at - now)])

    @property
    def turns(self) -> list[Post]:
        return [post for post in self.posts.values() if post.turn is not None]

    def stop(self) -> None:
        """Let running commands end for as long as the team allows, then give back what is not finished."""
        end = self._clock.boot() + self.workspace.team.limits.grace
        while any(post.running for post in self.turns) and (left := end - self._clock.boot()) > 0:
            self._watch.wait(min(left, 1.0))
            self._bells.rung()
            for post in self.turns:
                with self._alone(post):
                    post.check()
        for post in self.turns:
            post.withdraw()
        self._ledger.flush(all=True)

    def close(self) -> None:
        self._bells.close()
        self._elsewhere.close()

    def _free(self) -> int:
        return self.workspace.team.limits.parallel - len(self.turns)

    def _hear(self) -> None:
        for agent, where, name in self._bells.rung():
            if where in (bells.ALL, bells.STORE):
                self._sweep_at = float("-inf") if where == bells.ALL else self._sweep_at
                for each in self.posts.values():
                    each.look_at = float("-inf")
            post = self.posts.get(agent)
            if post is None:
                continue
            if where == bells.BEAT:
                post.sign()
            elif where == bells.CORRUPT:
                self.intake.tell_corrupt(agent)
            elif where == bells.PROCESSED:
                self.intake.arrived(agent, name)
            else:
                post.look_at = float("-inf")
                if where == bells.QUEUE and self.intake.is_legacy(name):
                    self.intake.take_legacy(agent)
                elif where == bells.QUEUE:
                    self.intake.take_dropped(agent)

    def _serve(self, now: float) -> None:
        free = self._free()
        for post in sorted(self._due(now), key=lambda post: post.served_at):
            if free <= 0:
                return
            with self._alone(post):
                free -= post.look()

    @contextmanager
    def _alone(self, post: Post) -> Iterator[None]:
        """Let what one agent makes of its files hold up nobody else."""
        try:
            yield
        except StoreError:
            raise
        except PabalError as exc:
            post.look_at = self._clock.boot() + _SORRY
            log.error("%s: %s: %s", post.name, exc.code, exc)

    def _due(self, now: float) -> Iterator[Post]:
        return (post for post in self.posts.values() if post.turn is None and post.look_at <= now)

    def _sweep(self, now: float) -> None:
        """Do what nobody rings for: forget what is old, and find mail that nobody would ever fetch."""
        self._sweep_at = now + _SWEEP_EVERY
        for name, post in self.posts.items():
            post.queue.sweep()
            self.intake.take_processed(name)
            self.intake.take_legacy(name)
            self.intake.take_dropped(name)
            self.intake.tell_corrupt(name)
        self.intake.bury_unknown(self.posts)
        keep = self.workspace.team.keep
        if keep.dead:
            self.workspace.store.purge(DEAD_LETTERS, State.READY, age=keep.dead * 86400)
        try:
            self.workspace.memory.forget(self._clock.now() - _FACTS_KEPT)
        except PabalError as exc:
            log.warning("memory not tidied: %s", exc)
