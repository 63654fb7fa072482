"""Write the OpenAPI and the AsyncAPI document of the chat into docs/reference: `scripts/chat_documents.py --write`."""

import json
import sys
from pathlib import Path

from pabal.apps.chat.gateway.documents import asyncapi, openapi

FOLDER = Path(__file__).parent.parent / "docs" / "reference"


def documents() -> dict[Path, str]:
    """Return the text of each file."""
    made = {"chat-openapi.json": openapi(), "chat-asyncapi.json": asyncapi()}
    return {FOLDER / name: json.dumps(found, indent=1, ensure_ascii=False) + "\n" for name, found in made.items()}


if __name__ == "__main__":
    for path, text in documents().items():
        if "--write" in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path.name} is not what the types say: run {sys.argv[0]} --write")
