"""Flags from dataclasses, the flags of 2019, and errors in one line.

The fields of a configuration are its flags. Only what was typed is returned, so that a typed flag wins over a
checkpoint, and a checkpoint over the defaults.
"""

import argparse
import difflib
import io
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, NoReturn

from txl.config import UsageError
from txl.model.settings import readers
from txl.positions import POSITION_ENCODINGS
from txl.runtime.distributed import LostContactError
from txl.runtime.log import complain, show_notices
from txl.training.step import NonFiniteError

Typed = dict[str, Any]


class Retired(typing.NamedTuple):
    """A flag of 2019 that has no meaning today."""

    n_value: int | str
    advice: str


_NO_EFFECT = {
    "cuda": Retired(0, "a GPU is used where there is one"),
    "multi_gpu": Retired("?", "start one process per GPU with: torchrun --nproc_per_node=N train.py"),
    "gpu0_bsz": Retired(1, "all devices get equal shares"),
    "emb_init": Retired(1, "the original never used it; --init covers the embeddings"),
    "emb_init_range": Retired(1, "the original never used it; --init_range covers the embeddings"),
    "clip_nonemb": Retired(0, "the original never used it; --clip covers all weights"),
    "debug": Retired(0, "the run's folder is always written"),
    "no_log": Retired(0, "evaluation writes a file only with --json"),
    "static_loss_scale": Retired(1, "--dtype float16 finds its scale itself"),
    "dynamic_loss_scale": Retired(0, "--dtype float16 finds its scale itself"),
}
_REFUSED = {
    "sample_softmax": Retired(1, "it never worked in the original; use --adaptive"),
    "finetune_v2": Retired(0, "it did nothing in the original"),
    "finetune_v3": Retired(0, "it did nothing in the original"),
    "restart": Retired("?", "use --resume, which goes on exactly where the run in --work_dir was saved"),
    "restart_dir": Retired(1, "use --resume, which goes on exactly where the run in --work_dir was saved"),
    "fp16": Retired(0, "use --dtype float16, or --dtype bfloat16, which needs no loss scaling"),
}
_HARMLESS = {"sample_softmax": "-1", "restart_dir": ""}
"""Values of refused flags that ask for what is done anyway."""
_REGISTRIES = {"position": POSITION_ENCODINGS}
"""Fields whose values are the names in a registry."""
_ATTN_TYPE = {"0": "rel_sinusoid", "1": "learned_relative", "2": "sinusoid_input", "3": "learned_per_layer"}
"""What the numbers of --attn_type are called now."""


def read_flags(argv: Sequence[str], *classes: type, description: str) -> Typed:
    """The flags in `argv` as {field: value}, fields that were not typed being absent.

    Dashes and underscores in flag names are the same. A bool field `x` makes --x and --no_x.

    Raises:
        UsageError: on flags that are misspelt or refused, and on values of the wrong type.
    """
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
        usage="%(prog)s [--flag value] ...",
    )
    parser.add_argument("--help", "-h", action="help", help="show this text and exit")
    for cls in classes:
        group = parser.add_argument_group(cls.__name__, (cls.__doc__ or "").split("\n\n")[0])
        hints = typing.get_type_hints(cls)
        for f in fields(cls):
            if f.metadata.get("flag", True):
                _add_flag(group, f, hints[f.name])
    for name, retired in {**_NO_EFFECT, **_REFUSED}.items():
        if not parser.knows(name):
            given: dict[str, Any] = {"action": "store_true"} if retired.n_value == 0 else {"nargs": retired.n_value}
            if retired.n_value == "?":
                given["const"] = ""
            parser.add_argument(f"--{name}", dest=f"retired {name}", help=argparse.SUPPRESS, default=None, **given)
    if parser.knows("position"):
        parser.add_argument("--attn_type", choices=_ATTN_TYPE, help=argparse.SUPPRESS, default=None)
    typed, unknown = parser.parse_known_args([_underscored(word) for word in argv])
    if unknown:
        raise UsageError(_unknown_message(unknown[0], parser.names()))
    values = vars(typed)
    retired = {key.removeprefix("retired "): values.pop(key) for key in list(values) if key.startswith("retired ")}
    _answer_retired({name: value for name, value in retired.items() if value is not None})
    _translate_attn_type(values)
    if values.get("clamp_len") == 0:
        print("note: --clamp_len 0 is off, as in the code of 2019", file=sys.stderr)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def build(cls: type, typed: Typed, **base: Any) -> Any:
    """An instance of a configuration: the typed flags over `base` over its defaults."""
    names = {f.name for f in fields(cls)}
    return cls(**{**base, **{name: value for name, value in typed.items() if name in names}})


def run(main: Callable[[Sequence[str]], int | None], *expected: type[Exception]) -> NoReturn:
    """Run an entry point; what the user can put right is one line on stderr and exit status 2.

    Args:
        main: returns its exit status, None for 0.
        expected: further exceptions, besides `UsageError` and those of the file system, whose message is for the user.
    """
    show_notices()
    try:
        _prepare_streams()
        status = main(sys.argv[1:]) or 0
        sys.stdout.flush()
    except (UsageError, *expected) as error:
        status = _complain(str(error), 2)
    except (NonFiniteError, LostContactError) as error:
        status = _complain(str(error), 1)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except OSError as error:
        name = error.filename2 or error.filename or "writing"
        status = _complain(f"{name}: {error.strerror or error}; make room, or name a folder that can be written", 2)
    except KeyboardInterrupt:
        status = _complain("interrupted; nothing was left half written", 130)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # torn down by the interpreter, what is left of a process group now and then aborts, and the status is lost
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _prepare_streams() -> None:
    """Let results be written in any encoding; a closed stream would lend its number to files that are opened later."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise UsageError("standard output is closed; send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(message: str, status: int) -> int:
    complain(message)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def knows(self, name: str) -> bool:
        return f"--{name}" in self._option_string_actions

    def names(self) -> list[str]:
        return [option for option in self._option_string_actions if option.startswith("--")]


def _underscored(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _add_flag(group: Any, f: Field, hint: Any) -> None:
    given: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS, "help": _help(f)}
    args = [a for a in typing.get_args(hint) if a is not types.NoneType]
    if hint == bool | int:
        group.add_argument(f"--{f.name}", nargs="?", type=int, const=True, metavar="int", **given)
        group.add_argument(f"--no_{f.name}", action="store_false", **{**given, "help": argparse.SUPPRESS})
        return
    if isinstance(hint, types.UnionType):
        hint, args = args[0], list(typing.get_args(args[0]))
    if f.name in _REGISTRIES:
        group.add_argument(f"--{f.name}", choices=_REGISTRIES[f.name], **given)
    elif hint is bool:
        group.add_argument(f"--{f.name}", action="store_true", **given)
        group.add_argument(f"--no_{f.name}", action="store_false", **{**given, "help": argparse.SUPPRESS})
    elif typing.get_origin(hint) is Literal:
        group.add_argument(f"--{f.name}", choices=args, **given)
    elif typing.get_origin(hint) is tuple:
        group.add_argument(f"--{f.name}", nargs="+", type=args[0], metavar=args[0].__name__, **given)
    else:
        group.add_argument(f"--{f.name}", type=hint, metavar=hint.__name__, **given)


def _help(f: Field) -> str:
    who = [name for names in readers(f.name) for name in names]
    text = (f"{', '.join(who)}: " if who else "") + f.metadata["help"].replace("%", "%%")
    silent = f.default in (None, False, (), MISSING)
    return text if silent else f"{text} [{f.default}]"


def _unknown_message(word: str, known: Sequence[str]) -> str:
    name = word.partition("=")[0]
    if not name.startswith("--"):
        return f"{word}: not a flag, and no flag before it takes it as a value; quote values with spaces; see --help"
    close = difflib.get_close_matches(name, known, n=1)
    return f"{name}: no such flag; " + (f"did you mean {close[0]}?" if close else "see --help")


def _translate_attn_type(values: dict[str, Any]) -> None:
    """Put the encoding's name where its number of 2019 was typed."""
    number = values.pop("attn_type", None)
    if number is None:
        return
    name = _ATTN_TYPE[number]
    if values.setdefault("position", name) != name:
        raise UsageError(
            f"--attn_type {number}: means --position {name}, but --position {values['position']} is asked for too; "
            f"drop one of them"
        )
    if number in "23":
        print(
            f"note: --attn_type {number} is --position {name}: remembered tokens get their positions once, where the "
            f"original added them again at each segment",
            file=sys.stderr,
        )


def _answer_retired(typed: dict[str, Any]) -> None:
    for name, value in typed.items():
        value = value[0] if isinstance(value, list) else value
        if name in _REFUSED and _HARMLESS.get(name) != value:
            raise UsageError(f"--{name}: {_REFUSED[name].advice}")
        if name in _NO_EFFECT:
            print(f"note: --{name} has no effect: {_NO_EFFECT[name].advice}", file=sys.stderr)
