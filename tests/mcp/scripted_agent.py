"""A scripted agent: takes messages over MCP, works, and acknowledges each with a reply, for ever.

Run as a process, to be killed at any moment: `python -m tests.mcp.scripted_agent SEED OPTION...` with the options of
`pabal mcp`. It prints the id of each message whose acknowledgement the server confirmed.
"""

import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.mcp.lines import Lines


def main(seed: str, *options: str) -> None:
    chance = random.Random(seed)
    on_queues = "--url" in options
    with Lines(*options, folder=Path.cwd(), modern=chance.random() < 0.5) as server:
        while True:
            wanted: dict[str, Any] = {"wait": 5}
            if on_queues:
                wanted |= {"queue": "jobs", "max": chance.randint(1, 3)}
            if chance.random() < 0.1:  # an agent that does not wait for the answer
                id = server.call("receive", **wanted)
                time.sleep(chance.random() * 0.1)
                server.cancel(id)
                continue
            for message in server.result("receive", **wanted)["messages"]:
                time.sleep(chance.random() * 0.05)
                receipt = message["receipt"]
                if chance.random() < 0.1:
                    server.answer(server.call("fail", receipt=receipt, reason="not today", retry_in=0))
                    continue
                if chance.random() < 0.1:
                    server.answer(server.call("extend", receipt=receipt, seconds=60))
                answer = server.answer(server.call("ack", receipt=receipt, reply=f"re {message['id']}"))
                if not answer.get("isError"):
                    sys.stdout.write(f"{message['id']}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
