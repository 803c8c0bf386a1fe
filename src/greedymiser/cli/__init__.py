"""The command line: curves, models and predictions from files. The only room that prints.

printing    what reaches the terminal
guarding    how a command fails: one sentence, and an exit code
clusters    data in many files, and the workers that read them
inputs      from files to rows, their meaning and their prices
training    from rows to models
outputs     from models to files
showing     from models to tables
commands    the commands themselves
"""

from greedymiser.cli.commands import app
from greedymiser.cli.inputs import Task

__all__ = ["Task", "app"]
