"""The rules of the house, held by a test: who may import whom, who may touch what, how long things may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent
PACKAGE = TREE / "sandbox"
FILES = sorted(PACKAGE.rglob("*.py"))
LEVELS = (
    {"cli", "report", "top"},
    {"launch", "control", "reconcile", "drill"},
    {"boxes", "manifest", "worktree", "harness"},
    {"kernel"},
    {"errors", ""},
)
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 50


def level(part: str) -> int:
    return next(number for number, names in enumerate(LEVELS) if part in names)


def part_of(module: str) -> str:
    """`sandbox.kernel.spawn` -> `kernel`; `sandbox` -> ``."""
    words = module.split(".")
    return words[1] if len(words) > 1 else ""


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "sandbox")
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def relative(path: Path) -> str:
    return str(path.relative_to(TREE))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_go_down_only(path: Path) -> None:
    own = part_of(".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__"))
    for module in imports(ast.parse(path.read_text())):
        if module.split(".")[0] != "sandbox" or module.endswith(".__version__"):
            continue
        assert level(part_of(module)) >= level(own), f"{relative(path)} imports {module}, which stands above it"


def test_one_place_starts_processes() -> None:
    starters = re.compile(r"\bos\.(fork|forkpty|posix_spawnp?|spawn\w+|system|popen)\(|\bsubprocess\b(?=[.,\s])|Popen")
    for path in FILES:
        if relative(path) == "sandbox/kernel/spawn.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call)):
                assert not starters.search(ast.unparse(node)), f"{relative(path)}:{node.lineno} starts a process"


def test_only_the_kernel_package_touches_proc_and_cgroupfs() -> None:
    for path in FILES:
        if path.parent.name == "kernel":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(r"\bpidfd_open|libc\.|prctl", ast.unparse(node.func)):
                pytest.fail(f"{relative(path)}:{node.lineno} touches the kernel")
            if isinstance(node, ast.Call):
                for argument in node.args:
                    text = ast.unparse(argument)
                    assert not re.match(r"f?['\"]/(proc|sys)/", text), f"{relative(path)}:{node.lineno} reads {text}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES_OF_A_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            assert node.end_lineno - node.lineno < MOST_LINES_OF_A_FUNCTION, f"{node.name} is too long"


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine that it was made on, no registry's host."""
    hosts = ("pypi" + ".org", "registry." + "npmjs", "deb." + "debian.org")
    paths = ("/" + "work/", "/" + "farm/", "/" + "root/")
    for path in sorted(TREE.rglob("*")):
        inside = path.relative_to(TREE).parts
        if path.suffix not in (".py", ".md", ".toml", "", ".service", ".timer") or not path.is_file():
            continue
        if {".git", ".venv", "__pycache__"} & set(inside) or any(p.startswith(".") for p in inside[:1]):
            continue
        text = path.read_text(errors="replace")
        for word in (*hosts, *paths):
            assert word not in text, f"{relative(path)} names {word}"
