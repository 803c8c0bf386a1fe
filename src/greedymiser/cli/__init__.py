"""The command line: curves, models and predictions from files. The only package that prints.

printing    what reaches the terminal
errors      how a command fails (one sentence, an exit code), and what it may write over
clusters    data in many files, and the workers that read them
inputs      from files to rows, their meaning and their prices
training    from rows to models
outputs     from models to files
tables      from models to tables
app         the app, and the options that commands share
commands    the commands themselves, a module for each
"""

from greedymiser.cli.app import app
from greedymiser.cli.commands import COMMANDS
from greedymiser.cli.errors import guarded
from greedymiser.cli.inputs import Task

for _command in COMMANDS:
    app.command()(guarded(_command))

__all__ = ["Task", "app"]
