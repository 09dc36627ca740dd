"""The wheel that these tests run from, and the script that writes it."""

import ast
import base64
import csv
import email
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

PACKAGE = pathlib.Path(__file__).parent.parent
VERSION = "0.1.0"
# e_machine of a program, and what only the wheel has to know of it.
MACHINES = {"x86_64": 62, "aarch64": 183}


def build(program, processor, out):
    pytest.importorskip("tomllib", reason="build-wheel needs Python 3.11")
    command = [sys.executable, PACKAGE / "build-wheel", program, f"{processor}-unknown-linux-musl", VERSION, out]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    return result.stderr if result.returncode else pathlib.Path(result.stdout.strip())


@pytest.fixture(scope="module", params=MACHINES)
def built(request, program, tmp_path_factory):
    """Two wheels of each processor. The code of the program is that of this processor, and does not matter here."""
    room = tmp_path_factory.mktemp(request.param)
    content = bytearray(pathlib.Path(program).read_bytes())
    content[18:20] = MACHINES[request.param].to_bytes(2, "little")
    (room / "program").write_bytes(content)
    first = build(room / "program", request.param, room / "first")
    os.utime(room / "program", (0, 0))
    return request.param, first, build(room / "program", request.param, room / "again")


@pytest.fixture
def wheel(built):
    return built[1]


def test_same_bytes_again(built):
    processor, first, again = built
    assert again.name == first.name and again.read_bytes() == first.read_bytes()


def test_name_and_tags_agree(wheel):
    name, version, build_tag, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version), build_tag) == ("onehold", VERSION, ())
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(f"onehold-{VERSION}.dist-info/WHEEL").decode().splitlines()
    assert {line[5:] for line in lines if line.startswith("Tag: ")} == {str(tag) for tag in tags}
    if os.uname().machine in wheel.name:
        assert tags & set(sys_tags())


SYSTEMS = [("manylinux_2_17", True), ("manylinux2014", True), ("musllinux_1_1", True), ("linux", False)]


@pytest.mark.parametrize("system, accepted", SYSTEMS)
def test_pip_accepts_all_tags(built, system, accepted, tmp_path):
    processor, wheel, _ = built
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    target = ["--dry-run", "--only-binary=:all:", "--target", tmp_path, "--platform", f"{system}_{processor}"]
    result = subprocess.run([*pip, *target, wheel], capture_output=True, text=True)
    assert (result.returncode == 0) is accepted
    assert accepted or "not a supported wheel" in result.stderr


def test_record(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = f"onehold-{VERSION}.dist-info/RECORD"
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert [row[0] for row in rows] == names and len(set(names)) == len(names)
        assert names[:-1] == sorted(names[:-1]) and names[-1] == record and rows[-1] == [record, "", ""]
        for name, digest, size in rows[:-1]:
            content = archive.read(name)
            right = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={right}", len(content))
        modes = {name: archive.getinfo(name).external_attr >> 16 for name in names}
        program = f"onehold-{VERSION}.data/scripts/onehold"
        assert {name for name, mode in modes.items() if mode != 0o100644} == {program} and modes[program] == 0o100755
        assert {"onehold/py.typed", "onehold/__init__.py", "onehold/aio.py"} <= set(names)
        assert {f"onehold-{VERSION}.dist-info/licenses/{file}" for file in ("LICENSE", "NOTICES")} <= set(names)


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"onehold-{VERSION}.dist-info/METADATA").decode("utf-8")
    fields = email.message_from_string(text)
    assert (fields["License-Expression"], fields["License-File"]) == ("MIT", "LICENSE")
    # Relative links would lead nowhere.
    assert re.findall(r"\]\((?!https:)", fields.get_payload()) == []


def test_refused_programs(program, tmp_path):
    assert "not a program for aarch64" in build(program, "aarch64", tmp_path)
    assert "names a dynamic linker" in build("/bin/true", os.uname().machine, tmp_path)
    assert not list(tmp_path.glob("*.whl"))


def test_program_of_the_wheel_is_on_path_and_starts(program):
    assert subprocess.check_output([program, "--version"], text=True).startswith(f"onehold {VERSION}\n")
    wheel = os.environ["WHEEL"] if "WHEEL" in os.environ else pytest.fail("start tests/run WHEEL")
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(f"onehold-{VERSION}.data/scripts/onehold")
    assert pathlib.Path(program).read_bytes() == content


def test_licence_is_that_of_the_repository():
    # A copy: pip builds from this directory alone, and an archive of it would not have what a link points to.
    assert (PACKAGE / "LICENSE").read_bytes() == (PACKAGE / "../../LICENSE").read_bytes()


def test_sources_are_of_python_3_9():
    sources = [*(PACKAGE / "src").rglob("*.py"), *(PACKAGE / "examples").glob("*.py"), *(PACKAGE / "tests").glob("*.py")]
    assert len(sources) > 10
    for source in sources:
        ast.parse(source.read_text(encoding="utf-8"), str(source), feature_version=(3, 9))
