"""`mnemolab COMMAND`: parse, run, and turn an error into one clear line and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from mnemolab import __version__
from mnemolab.errors import BadRequest, MnemolabError, hint

COMMANDS = ("list", "train", "sweep", "probe", "claims", "report", "data", "demo", "bench")
# options that may be given several times
REPEATED = ("--plugin", "--replication")


class _Parser(argparse.ArgumentParser):
    """One line on stderr instead of the usage block, and exit code 2. `words` is the whole command line."""

    words: tuple[str, ...] = ()

    def error(self, message: str):
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def build_parser(command: str | None, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser, with the arguments of `command` filled in; the other commands are listed only."""
    parser = _Parser(
        prog="mnemolab",
        description="What a sequence model remembers, overwrites, confuses and forgets.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mnemolab {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"mnemolab.commands.{name}")
        sub = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY, allow_abbrev=False)
        if name == command:
            sub.words = tuple(words)
            module.add_arguments(sub)
            sub.add_argument(
                "--plugin",
                action="append",
                default=[],
                metavar="MODULE",
                help="import MODULE first; it may register names",
            )
            sub.add_argument("--traceback", action="store_true", help="print the traceback of an error")
    return parser


def _given_once(words: Sequence[str]) -> None:
    """argparse keeps the last of two; a person who gives two wants to be asked."""
    named = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
    for name in named:
        if named.count(name) > 1 and name not in REPEATED:
            raise BadRequest(f"{name} is given twice; give it once")


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        print(f"mnemolab: unknown command {command!r}; {hint(command, COMMANDS)}", file=sys.stderr)
        return 2
    traceback = "--traceback" in argv
    try:
        args, rest = build_parser(command, argv).parse_known_args(argv)
        module = import_module(f"mnemolab.commands.{args.command}")
        _given_once(argv)
        # `train` takes --task.x and --model.x: fields that only the named class knows
        if rest and not getattr(module, "TAKES_FIELDS", False):
            print(
                f"mnemolab {args.command}: unknown argument {rest[0]!r} (see mnemolab {args.command} --help)",
                file=sys.stderr,
            )
            return 2
        args.rest = rest
        from mnemolab.registry import load_plugins

        load_plugins(args.plugin)
        return module.run(args)
    except MnemolabError as error:
        if traceback:
            raise
        print(f"mnemolab {command}: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"mnemolab {command}: stopped by the user; what was finished is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `mnemolab list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
