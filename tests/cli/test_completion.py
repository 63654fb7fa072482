"""`pabal completion`: the shells' scripts, and queue names from the store."""

import subprocess

import pytest

from tests.cli.command import COMMAND, Pabal


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(pabal: Pabal, shell: str) -> None:
    script = pabal.ok("completion", shell)
    assert "_PABAL_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_other_shells_are_refused(pabal: Pabal) -> None:
    assert pabal("completion", "tcsh").code == 2


def complete(pabal: Pabal, words: str) -> list[str]:
    env = {
        **pabal.env,
        "_PABAL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [*COMMAND[:-1], COMMAND[-1].replace("main()", "import sys; sys.argv[0] = 'pabal'; main()")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_options_and_queues_complete(pabal: Pabal) -> None:
    for name in ("orders", "orders.eu", "jobs"):
        pabal.ok("publish", name, "1")
    assert complete(pabal, "pabal ex") == ["extend-lease"]
    assert complete(pabal, "pabal publish jobs --dedup") == ["--dedup-key"]
    assert complete(pabal, "pabal peek or") == ["orders", "orders.eu"]
    assert complete(pabal, "pabal show x --queue j") == ["jobs"]
    assert complete(pabal, f"pabal --url {pabal.url} status ord") == ["orders", "orders.eu"]


def test_completing_without_a_store_is_silent(pabal: Pabal) -> None:
    assert complete(pabal, "pabal peek or") == []
    assert not (pabal.place / "store.db").exists()
