"""The commands, each in a module of its own, in the order of ``greedymiser --help``."""

from greedymiser.cli.commands import (
    baseline,
    costs_template,
    curve,
    demo,
    fit,
    inspect,
    predict,
    protocol,
    score,
    serve,
)

COMMANDS = (
    demo.demo,
    curve.curve,
    fit.fit,
    predict.predict,
    score.score,
    protocol.protocol,
    inspect.inspect,
    serve.serve,
    baseline.baseline,
    costs_template.costs_template,
)
