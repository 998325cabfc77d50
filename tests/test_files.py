"""Files are written whole or not at all, wherever the package writes one."""

import ast
import os
import signal
from pathlib import Path

import pytest

import repolicy
from repolicy.files import check_writable, write_bytes


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_dies_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"before")
    child = os.fork()
    if not child:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        try:
            write_bytes(path, b"after")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert path.read_bytes() == b"before"
    assert len([*tmp_path.iterdir()]) == 2  # what was being written lies beside it


def test_a_new_folder_that_another_process_uses_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs" / "mine" / "file"

    def touch(temporary: Path) -> None:
        (tmp_path / "runs" / "theirs").mkdir()

    monkeypatch.setattr(Path, "touch", touch)
    check_writable(path)
    assert [each.name for each in (tmp_path / "runs").iterdir()] == ["theirs"]


BY_PARTS = {  # a folder of its own, or a text that grows
    *("report/filming.py", "report/movie.py: render_films", "many/pool.py", "runs/folder.py: log"),
    "wishes/record.py: __init__",
    "files.py: write_bytes",
}


def test_whatever_else_writes_a_file_writes_it_whole() -> None:
    """Else whoever reads it, or is killed, could find a half."""
    source, found = Path(repolicy.__file__).parent, set()
    for path in [path for path in source.rglob("*.py") if any(word in path.read_text() for word in ("open", "write_"))]:
        for function in [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]:
            for call in [each for each in ast.walk(function) if isinstance(each, ast.Call)]:
                named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                words = [each.value for each in call.args if isinstance(each, ast.Constant)]
                opens = named == "open" and any(set("wax+") & set(str(word)) for word in words)
                if opens or (isinstance(call.func, ast.Attribute) and named in ("write_bytes", "write_text")):
                    found.add(f"{path.relative_to(source)}: {function.name}")
    assert not {each for each in found if each not in BY_PARTS and each.partition(":")[0] not in BY_PARTS}
