"""The package's types, as type checkers read them."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys
import textwrap

from nanobind.stubgen import StubGen, load_pattern_file

import paramshard
from paramshard import _core

PATTERNS = pathlib.Path(__file__).parents[2] / "python/stub_patterns.txt"
FOLDER = pathlib.Path(paramshard.__file__).parent


def test_the_stub_says_what_the_module_does():
    generator = StubGen(_core, include_docstrings=False, patterns=load_pattern_file(PATTERNS))
    generator.put(_core)
    assert (FOLDER / "_core.pyi").read_text() == generator.get(), "make it anew: ./dev stub"


def test_the_stub_names_every_attribute():
    """Without the generator, whose omissions would be missing from both."""
    [*statements] = ast.parse((FOLDER / "_core.pyi").read_text()).body
    classes = {node.name: {of.name for of in node.body if isinstance(of, ast.FunctionDef)}
               for node in statements if isinstance(node, ast.ClassDef)}
    for name, value in vars(_core).items():
        if not isinstance(value, type):
            continue
        missing = {attribute for attribute in vars(value) if not attribute.startswith("_")} - classes[name]
        assert not missing, name


def test_the_package_says_that_it_is_typed():
    assert (FOLDER / "py.typed").exists()


def test_everything_that_is_public_is_there_and_documented():
    for name in paramshard.__all__:
        assert getattr(paramshard, name).__doc__, name


def test_specifications_name_all_values_of_an_enumeration():
    for described, names in {"Encoding": _core.FORMATS + _core.ELEMENT_TYPES, "InitialValue": _core.INITIALIZERS,
                             "ParameterGroup": _core.OPTIMIZERS,
                             "ParameterSpec": _core.MOMENT_TYPES + _core.MASTER_TYPES}.items():
        words = re.findall(r"\w+", inspect.getsource(getattr(paramshard, described)))
        assert not set(names) - set(words), described


TRAINER = """
    import pathlib
    from typing_extensions import assert_type

    import numpy as np

    import paramshard as ps

    spec = ps.ModelSpec("m", units=[ps.UnitSpec("layer", [ps.ParameterSpec("w", [2, 3])])])
    with ps.Client(rank=0) as client, client.open_model(spec, restore="latest") as model:
        with model.gather("layer") as unit:
            decoded = unit["w"].decode()
        with model.gradients("layer") as gradients:
            gradients["w"][...] = decoded
            gradients.write("w", np.zeros((2, 3), np.float32))
            gradients.push()
        assert_type(model.commit(groups=[{"learning_rate": 1.0}]).wait().version, int)
        assert_type(model.spec, ps.ModelSpec)
        record = client.save("m")
        assert_type(record.path, str | None)
        if record.error is not None:
            raise record.error
        client.restore("m", 3)
        client.restore("m", pathlib.Path("checkpoint"))
        client.import_tensors("m", {"w": decoded})
        client.import_tensors("m", [ps.ImportTensor("w", decoded)])
        assert_type(client.daemon_info().devices, list[str])
        assert_type(client.memory(), list[ps.MemoryUse])
        assert_type(ps.__version__, str)
        reader = ps.Reader("m", name="evaluation")
        with reader.acquire(timeout=1.0) as snapshot:
            snapshot.copy_into({"w": snapshot["w"], "b": decoded})
            assert_type(snapshot.map("w")[0].first_row, int)
            assert_type(reader.wait_newer(snapshot.version, history=snapshot.history), int)
        assert_type(reader.copy({"w": decoded}, timeout=1.0), ps.Copied)
        assert_type(reader.read(lambda snapshot: snapshot.version), int)
"""
MISTAKES = ['ps.Client(rank="0")', 'ps.Client().open_model("m")', 'ps.Client().restore("m", 1.5)',
            "ps.Client().daemon_info().ranks", "ps.Client().daemon_info().world_size = 3",
            'ps.Reader("m").wait_newer("3")']


def check_types(tmp_path: pathlib.Path, script: str) -> list[str]:
    """Returns the errors of mypy for a script, a line for each."""
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    process = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir",
                              str(tmp_path / "cache"), str(file)], capture_output=True, text=True, cwd=tmp_path)
    return process.stdout.splitlines() + process.stderr.splitlines()


def test_a_trainer_is_checked_and_so_are_mistakes(tmp_path: pathlib.Path):
    mistakes = [f"    {line}" for line in MISTAKES]
    lines = check_types(tmp_path, TRAINER + "\n".join(mistakes))
    first = len(textwrap.dedent(TRAINER).splitlines()) + 1
    found = [int(line.split(":")[1]) for line in lines]
    assert found == [first + i for i in range(len(mistakes))], lines
