"""The files around the package agree with each other and with what is installed."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from pp_lab.course import release

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along on Python 3.10

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOL = PYPROJECT["project"], PYPROJECT["tool"]
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
LABS = sorted((ROOT / "labs").glob("*.ipynb"))


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def pins():
    """{package: requirement} of constraints.txt."""
    lines = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def requirements(*extras):
    texts = list(PROJECT["dependencies"])
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def test_environment_yml_asks_for_what_pyproject_asks_for():
    environment = yaml.safe_load(read("environment.yml"))
    conda = [Requirement(d) for d in environment["dependencies"] if isinstance(d, str)]
    conda = {d.name: d.specifier for d in conda if d.name != "pip"}
    conda["torch"] = conda.pop("pytorch")
    wanted = {r.name: r.specifier for r in requirements()}
    assert conda == wanted | {"python": SpecifierSet(PROJECT["requires-python"])}


def test_every_pin_is_one_exact_version_inside_the_range_of_pyproject():
    pinned = pins()
    for name, pin in pinned.items():
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), f"{name} is not pinned"
    for wanted in requirements("test"):
        (pin,) = pinned[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version, prereleases=True), wanted.name


def test_ci_has_the_pinned_version_of_everything_that_is_needed():
    """Also of what the needed packages need. On another Python, pip may have chosen others."""
    if sys.version_info[:2] != (3, 11) or sys.platform != "linux":
        pytest.skip("the pins are those of CI: Python 3.11 on Linux")
    wrong, pinned = [], pins()
    for name, version in installed(requirements("test")).items():
        if name not in pinned:
            wrong.append(f"add {name}=={version}")
        elif not pinned[name].specifier.contains(version, prereleases=True):
            wrong.append(f"{pinned[name]} but {version} is installed")
    assert not wrong, "constraints.txt: " + "; ".join(sorted(wrong))


def installed(roots):
    """{package: version} of the roots and all that they need, as installed here."""
    found, seen, queue = {}, set(), list(roots)
    while queue:
        requirement = queue.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(requirement.name)
        found[key[0]] = Version(distribution.version).public
        for needed in map(Requirement, distribution.requires or ()):
            extras = requirement.extras or {""}
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                queue.append(needed)
    return found


def test_a_pin_whose_release_needs_a_newer_python_than_ours_says_so_in_its_marker():
    """So that pip can choose an older release where Python is older."""
    pythons = ("3.10.0", "3.11.0", "3.11.5", "3.12.0", "3.13.0")
    for name, pin in pins().items():
        try:
            needs = SpecifierSet(metadata.metadata(name).get("Requires-Python") or "")
        except metadata.PackageNotFoundError:
            continue
        for full in pythons:
            environment = {"python_full_version": full, "python_version": full.rpartition(".")[0]}
            applies = not pin.marker or pin.marker.evaluate(environment)
            assert not applies or full in needs, f"{pin} does not exist for Python {full}"


def test_the_readme_names_only_commands_that_exist():
    readme, makefile = read("README.md"), read("Makefile")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", code(readme)))
    assert {"lab", "test"} <= named <= targets
    for module in re.findall(r"python -m (pp_lab[\w.]*)", code(readme)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def code(markdown):
    """What stands between backticks, in fences or in a line."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", markdown, re.DOTALL))


def test_every_link_of_the_readme_into_the_repository_leads_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)|<img[^>]* src=\"([^\"]+)\"", read("README.md"))
    targets = [one or other for one, other in targets]
    assert "assets/readme.png" in targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_readme_lists_every_lab():
    assert LABS
    for path in LABS:
        assert f"labs/{path.name}" in read("README.md")


def test_make_lists_its_targets_and_lab_opens_the_first_lab():
    listed = make(ROOT).stdout
    for target in ("lab", "test", "doctor", "solutions", "release", "assets", "format", "clean"):
        assert re.search(rf"^  make {target}  +\S", listed, re.MULTILINE)
    assert re.search(
        r"-m jupyter lab .*labs/pp_lab\.ipynb$", make(ROOT, "-n", "lab").stdout.strip()
    )


def make(folder, *arguments):
    """What `make` does there, also where these tests were themselves started by make."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


OLD = '#!/bin/sh\necho "Python 3.9.2"\ncase "$2" in *version_info*) exit 1;; esac\n'
BARE = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n'


@pytest.mark.parametrize(
    "script, sentence",
    [
        (None, "There is no {python} here: install Python 3.10 or newer"),
        (OLD, "{python} is Python 3.9.2, and pp_lab needs 3.10 or newer"),
        (BARE, "{python} has no venv module: on Debian or Ubuntu, sudo apt install python3-venv"),
    ],
    ids=["missing", "old", "without venv"],
)
def test_make_explains_a_python_that_it_cannot_use(tmp_path, script, sentence):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(read(name))
    python = tmp_path / "python"
    if script:
        python.write_text(script)
        python.chmod(0o755)
    done = make(tmp_path, "lab", f"PYTHON={python}")
    assert done.returncode != 0
    assert sentence.format(python=python) in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_every_file_in_the_package_that_is_not_python_is_packaged():
    data = TOOL["setuptools"]["package-data"]
    files = [path for path in (ROOT / "pp_lab").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert files
    for path in files:
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert any(path.match(pattern) for pattern in data.get(package, ())), path


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_python_files_follow_the_projects_rules(command):
    ruff = [sys.executable, "-m", "ruff", *command]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make format`\n{done.stdout[:3000]}"


# The notebooks


def test_there_is_a_lab_for_every_solution_and_no_other():
    assert [path.name for path in LABS] == [path.name for path in SOLUTIONS]
    assert (ROOT / "labs" / "pp_lab.ipynb") in LABS


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_a_lab_is_what_its_solution_releases(path):
    assert (ROOT / "labs" / path.name).read_text(encoding="utf-8") == release.release_file(path), (
        "run `make release`"
    )


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_has_no_outputs_no_counts_no_widget_state_and_no_solution(path):
    text = path.read_text(encoding="utf-8")
    lab = nbformat.reads(text, as_version=4)
    cells = [cell for cell in lab.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert "widgets" not in lab.metadata
    assert "SOLUTION" not in text and "HIDDEN TESTS" not in text


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_a_solution_was_run_from_top_to_bottom_and_saved(path):
    solution = nbformat.read(path, as_version=4)
    counts = [
        cell.execution_count for cell in solution.cells
        if cell.cell_type == "code" and cell.source.strip()
    ]  # fmt: skip
    assert counts == list(range(1, len(counts) + 1))
    assert "widgets" not in solution.metadata


@pytest.mark.parametrize(
    "path", SOLUTIONS + LABS, ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_nbgrader_metadata_is_valid_for_nbgrader(path):
    v3 = pytest.importorskip("nbgrader.nbgraderformat.v3")
    notebook = nbformat.read(path, as_version=4)
    v3.MetadataValidatorV3().validate_nb(notebook)
    roles = [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]
    assert any(role.grade for role in roles) and any(role.solution for role in roles)
