"""A salvaged database has every row before and behind the pages that cannot be read."""

from pathlib import Path

import pytest

from pabal.sql.connection import connect
from pabal.sql.repair import salvage

ROWS = 10_000


@pytest.mark.parametrize("kind", ["", "without rowid"])
def test_what_lies_before_and_behind_a_damaged_page_is_saved(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.db"
    connection = connect(path)
    connection.execute(f"create table things (id integer primary key, name text) {kind}").fetchall()
    connection.execute("begin").fetchall()
    connection.executemany("insert into things values (?, ?)", [(id, f"thing {id}") for id in range(ROWS)])
    connection.execute("commit").fetchall()
    leaves = "select pageno, ncell from dbstat where name = 'things' and pagetype = 'leaf' order by pageno"
    pages: list[tuple[int, int]] = connection.execute(leaves).fetchall()  # type: ignore[assignment]
    connection.close()
    page, cells = pages[len(pages) * 6 // 10]
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(data)
    kept, lost, _ = salvage(path, 1.0, lambda connection: 0)
    connection = connect(path)
    found = connection.execute("select count(*) from things where name = 'thing ' || id").get
    connection.close()
    assert ROWS - cells - 1 <= found < ROWS and lost and kept.read_bytes() == data


def test_a_copy_ends_where_the_rows_of_a_page_lead_back_to_the_first_one(tmp_path: Path) -> None:
    """The end of a page is zero, as in a file that was cut short: all its rows have the id 0, and 1 comes after it."""
    path = tmp_path / "x.db"
    connection = connect(path)
    connection.execute("create table things (id integer primary key, name text)").fetchall()
    connection.execute("begin").fetchall()
    connection.executemany("insert into things values (?, ?)", [(id, f"{id:490}") for id in range(1, 97)])
    connection.execute("commit").fetchall()
    leaves = "select pageno, ncell from dbstat where name = 'things' and pagetype = 'leaf' order by path"
    pages: list[tuple[int, int]] = connection.execute(leaves).fetchall()  # type: ignore[assignment]
    connection.close()
    assert [cells for _, cells in pages] == [8] * 12
    data = bytearray(path.read_bytes())
    begin, end = (pages[4][0] - 1) * 4096 + 8 + 2 * 8, pages[4][0] * 4096  # rows 33 to 40, behind the list of them
    data[begin:end] = bytes(end - begin)
    end = pages[5][0] * 4096
    data[end - 4096 : end] = b"\xff" * 4096
    path.write_bytes(data)
    salvage(path, 1.0, lambda connection: 0)
    connection = connect(path)
    found = connection.execute("select id from things where cast(name as integer) = id order by id").fetchall()
    connection.close()
    assert [row[0] for row in found] == [*range(1, 33), *range(49, 97)]
