"""`vit`: a table of verbs, and what becomes of their errors. Nothing here or in the verbs' modules needs torch."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from inspect import cleandoc
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from vitkit.cli.bench import bench
from vitkit.cli.convert import convert
from vitkit.cli.cost import cost
from vitkit.cli.data import data
from vitkit.cli.doctor import doctor
from vitkit.cli.embed import embed
from vitkit.cli.eval import eval
from vitkit.cli.export import export
from vitkit.cli.finetune import finetune
from vitkit.cli.frozen import fewshot, knn, probe
from vitkit.cli.inspection import inspect
from vitkit.cli.models import models
from vitkit.cli.output import StandardOutput, note
from vitkit.cli.pack import pack
from vitkit.cli.predict import predict
from vitkit.cli.quickstart import quickstart
from vitkit.cli.report import report
from vitkit.cli.runs import runs
from vitkit.cli.search import search
from vitkit.cli.serve import serve
from vitkit.cli.study import STUDY
from vitkit.cli.train import recipes, train
from vitkit.cli.verify import verify
from vitkit.cli.vtab import vtab
from vitkit.errors import InputError, did_you_mean
from vitkit.notes import visible

VERBS: dict[str, Callable[..., None]] = {
    "quickstart": quickstart,
    "models": models,
    "cost": cost,
    "predict": predict,
    "eval": eval,
    "embed": embed,
    "search": search,
    "verify": verify,
    "inspect": inspect,
    "train": train,
    "fewshot": fewshot,
    "probe": probe,
    "knn": knn,
    "vtab": vtab,
    "finetune": finetune,
    "recipes": recipes,
    "runs": runs,
    "report": report,
    "bench": bench,
    "convert": convert,
    "export": export,
    "serve": serve,
    "data": data,
    "pack": pack,
    "doctor": doctor,
}
# A verb with verbs of its own.
GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "study": ("Run many settings from one file: plan what they cost, run them, show what they found.", STUDY),
}


def flags_without_type(params: list[Any]) -> list[Any]:
    """Return parameters whose flags show nothing after their name; typer's help shows their type, `<bool>`."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class Verbs(TyperGroup):
    """The group of verbs; an unknown one is answered with near ones."""

    def get_params(self, ctx: Any) -> list[Any]:
        return flags_without_type(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing and args[0] not in self.commands:
            hint = did_you_mean(args[0], self.commands) or ";"
            raise InputError(f"unknown verb {args[0]!r}{hint} `{ctx.command_path} --help` lists them all")
        return super().resolve_command(ctx, args)


class Verb(TyperCommand):
    """One verb; surplus arguments most often come from a pattern that the shell expanded."""

    def get_params(self, ctx: Any) -> list[Any]:
        return flags_without_type(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        surplus = super().parse_args(ctx, args)
        if surplus and not ctx.resilient_parsing:
            raise InputError(f"unexpected argument {surplus[0]!r}; if you used a pattern, quote it")
        return surplus

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *map(argument_in_usage, arguments)]


def argument_in_usage(argument: Any) -> str:
    """Return an argument as a usage line has it: [IMAGE]... for several that may be left out."""
    name = str(argument.metavar or argument.name.upper())
    if name.startswith("["):  # says so itself
        return name
    several = "" if argument.nargs == 1 or name.endswith("...") else "..."
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


def in_paragraphs(text: str | None) -> str:
    """Return a docstring with one line for each paragraph, for the terminal to wrap."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text or "").split("\n\n"))


app = typer.Typer(
    cls=Verbs,
    name="vit",
    subcommand_metavar="VERB [ARGUMENTS]...",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, verb in VERBS.items():
    app.command(name, cls=Verb, help=in_paragraphs(verb.__doc__))(verb)
for name, (about, verbs) in GROUPS.items():
    group = typer.Typer(cls=Verbs, no_args_is_help=True)
    for own, verb in verbs.items():
        group.command(own, cls=Verb, help=in_paragraphs(verb.__doc__))(verb)
    app.add_typer(group, name=name, help=about, subcommand_metavar="VERB [ARGUMENTS]...")


def print_version(asked: bool) -> None:
    if asked:
        from vitkit import __version__

        print(f"vitkit {__version__}")
        raise typer.Exit


@app.callback()
def vit(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The complete Vision Transformer in PyTorch."""


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Say it without the line of code that it comes from."""
    note(f"warning: {message}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if sys.stderr is None:  # closed by whoever started the command
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    if sys.stdout is None:
        note("error: standard output is closed, so no result can be printed")
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal can't show
    try:
        with warnings.catch_warnings(), redirect_stdout(cast(TextIO, StandardOutput(sys.stdout))):
            warnings.showwarning = _show_warning
            status = app(arguments, prog_name="vit", standalone_mode=False)
            sys.stdout.flush()
    except InputError as error:
        note(f"error: {visible(str(error), keep='')}")
        return 2
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        note(f"error: {visible(str(error.filename), keep='')}: {error.strerror}")
        if error.filename == StandardOutput.name:
            _discard_output()
            return 1
        return 2  # a path that is too long, or a folder that may not be looked into
    except typer.TyperException as error:
        if message := error.format_message():  # bare `vit` has printed its help
            note(f"error: {message.replace(': Value error, ', ': ', 1)}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return status or 0


def _discard_output() -> None:
    """Let what is buffered go nowhere, so that the flush at exit doesn't fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
