"""What compose.yaml and the Dockerfile call is there."""

import re
import shlex
import tomllib
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from greedymiser.cli import app

ROOT = Path(__file__).parent.parent
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def command_named(words):
    """The command that some words call: of Dask's command line, or of ours."""
    program, name, *rest = words
    if program == "greedymiser":
        return get_command(app).commands[name], rest
    assert program == "dask"
    found = {point.name: point for point in entry_points(group="dask_cli")}
    return found[name].load(), rest


@pytest.mark.parametrize("service", SERVICES)
def test_commands_exist_and_know_their_options(service):
    command, rest = command_named(shlex.split(SERVICES[service]["command"]))
    known = {option for parameter in command.params for option in parameter.opts}
    options = [word for word in rest if word.startswith("--")]
    assert options
    assert set(options) <= known
    # All that is required is given: nothing is left when the parser has taken its part.
    context = command.make_context(service, list(rest), resilient_parsing=True)
    assert not context.args


def test_services_fit_together():
    assert SERVICES["scheduler"]["build"] == "."
    assert {service["image"] for service in SERVICES.values()} == {"greedymiser"}
    for name in ("worker", "fit"):
        assert "tcp://scheduler:8786" in SERVICES[name]["command"]
        assert set(SERVICES[name]["depends_on"]) <= SERVICES.keys()
    # Whoever reaches a scheduler may run anything on the workers.
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["scheduler"]["ports"])
    # Patterns are read by workers, under the name that the client gives them.
    assert SERVICES["fit"]["volumes"][0] == SERVICES["worker"]["volumes"][0]


def test_the_image_is_made_of_what_there_is():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = re.search(r'pip install .*"\.\[(.*)\]"', DOCKERFILE)[1].split(",")
    assert set(wanted) <= extras["optional-dependencies"].keys()
    for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        for name in line.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored
    for module in re.findall(r"python -m (\S+)", DOCKERFILE):
        assert find_spec(module)
    # Plain names of images: nobody's registry.
    assert re.findall(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE) == ["python:3.13-slim"]
