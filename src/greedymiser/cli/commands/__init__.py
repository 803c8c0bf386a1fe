"""The commands, each in a module of its own, in the order of ``greedymiser --help``."""

from greedymiser.cli.commands import (
    costs_template,
    curve,
    demo,
    fit,
    inspect,
    predict,
    protocol,
)

COMMANDS = (
    demo.demo,
    curve.curve,
    fit.fit,
    predict.predict,
    protocol.protocol,
    inspect.inspect,
    costs_template.costs_template,
)
