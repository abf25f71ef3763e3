"""Flags from the fields of configurations.

Only typed flags are returned, so that a flag overrides a checkpoint, and a checkpoint overrides the
defaults.
"""

import argparse
import difflib
import functools
import re
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from txl.config import Context, UsageError, check_field, field_of, names_of, require
from txl.data_utils.config import DATA_SETS
from txl.plugins import PLUGIN_HELP, is_from_file, taken_setting
from txl.registry import (
    ACTIVATIONS,
    ADAPTATION_RULES,
    ALL_PARTS,
    PARTS_OF_TRAINING,
    Registry,
    default_of,
    names_of_settings,
    readers,
    setting_in,
    settings_of,
)
from txl.settings.file import is_of_run, settings_in
from txl.settings.layers import (
    Asked,
    Entry,
    Layer,
    has_preset,
    merge,
    presets_of,
    read_preset,
)
from txl.settings.legacy import (
    NAMES_ELSEWHERE,
    RETIRED,
    add_legacy_flags,
    answer_legacy_flags,
    current_value,
)
from txl.settings.reader import read_tables

Groups = dict[str, list[tuple[Field, Any]]]
_OF_FILES = {registry.flag for registry in (*ALL_PARTS, DATA_SETS)}
"""Flags whose choices may be in a file of one's own."""
_CHOICES = {registry.flag: registry for registry in (*ALL_PARTS, ACTIVATIONS, DATA_SETS)}

_CONFIG_HELP = (
    "file of settings (TOML, YAML, JSON, or the config.json of a run), over which typed flags win;"
    " see docs/training.md"
)
ALL = "all"
_HELP_HELP = (
    "show this text and exit; with a topic, such as memory or optim, the flag of that name and the"
    f" settings of all that it chooses; {ALL}: every flag"
)
_PRESET_HELP = "settings by name, over which typed flags win; txl/presets has them"
_BY_FLAG_ONLY = ("config", "config_file", "help", "plugin")
"""Flags that no file sets."""


def require_utf8(words: Iterable[str]) -> None:
    """Raise `UsageError` if a word of a command line is no text, which names of
    files need not be.
    """
    for word in words:
        shown = word.encode(errors="backslashreplace").decode()
        require(
            shown == word,
            f"{shown}: not UTF-8; rename it, or set the locale that its name is written in",
        )


def read_flags(
    argv: Sequence[str],
    *classes: type,
    description: str,
    first: Sequence[str] = (),
    elsewhere: Mapping[str, Sequence[type]] = MappingProxyType({}),
    presets: Entry | None = None,
) -> Asked:
    """The settings of a command line as {field: value}; --help lists the fields in `first` first.
    Raises `UsageError` on unknown or refused flags, and on values of the wrong type; `elsewhere`
    says why flags of other programs are not read here. `presets` is the program that --preset and
    --config have settings for; they count as typed, and those that are typed win.

    Dashes and underscores in flag names are equivalent. A bool field `x` makes the flags --x and
    --no_x.
    """
    require_utf8(argv)
    parser = _parser_for(classes, description, first)
    if presets is not None:
        _add_layers(parser, presets)
    add_legacy_flags(parser, parser.choosers)
    layers = [Layer(parser.typed(argv, elsewhere))]
    if presets is not None:
        layers += _layers_below(parser, presets, layers[0].values)
    return _settled(layers)


def over_preset(values: Asked, preset: str, entry: Entry, *classes: type) -> Asked:
    """These settings over those of a preset for a program."""
    parser = _parser_for(classes)
    return _settled([Layer(values), parser.preset(preset, entry)])


def _parser_for(
    classes: Sequence[type], description: str = "", first: Sequence[str] = ()
) -> "_Parser":
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
        usage="%(prog)s [--flag value] ...",
    )
    _add_flags(parser, classes, first)
    return parser


def _settled(layers: Sequence[Layer]) -> Asked:
    """The values of layers, the highest first, by the names that they have today."""
    values = merge(layers)
    answer_legacy_flags(values)
    if values.get("clamp_len") == 0:
        print("note: --clamp_len 0 is off, as in the 2019 code", file=sys.stderr)
    data = values.get("data", ())
    if isinstance(data, list) and len(data) == 1:
        values["data"] = data[0]
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return values


def _add_layers(parser: "_Parser", entry: Entry) -> None:
    """Add the flags that name a preset and a file of settings for a program."""

    def preset(name: str) -> str:
        if not has_preset(name, entry):
            names = ", ".join(presets_of(entry))
            raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {names})")
        return name

    unset: Any = {"default": argparse.SUPPRESS}
    parser.add_argument("--preset", type=preset, metavar="NAME", help=_PRESET_HELP, **unset)
    for name, text in (("config", _CONFIG_HELP), ("config_file", argparse.SUPPRESS)):
        parser.add_argument(f"--{name}", metavar="FILE", help=text, **unset)


def _layers_below(parser: "_Parser", entry: Entry, typed: Asked) -> list[Layer]:
    """The layers of the file and the preset that a command line names, whose flags are taken out of
    `typed`; the file may name the preset. NVIDIA's programs name the file with --config_file, and with --config
    a configuration in it.
    """
    layers = []
    name = typed.pop("config", None)
    file = typed.pop("config_file", None)
    if file is None:
        file = name
        name = None
    preset = typed.pop("preset", None)
    if file is not None and (file != "default" or Path(file).exists()):
        content = read_tables(Path(file))
        raw = settings_in(content, Path(file), entry, name)
        if is_of_run(content):
            raw = parser.asked_for(raw)
        of_file = parser.layer(raw, file, entry)
        named = of_file.values.pop("preset", None)
        preset = preset or named
        layers.append(of_file)
        typed["config"] = file
    if preset is not None:
        layers.append(parser.preset(preset, entry))
    return layers


def has_flag(argv: Sequence[str], name: str) -> bool:
    """True if a command line has a flag."""
    return any(_underscored(word, {name}).partition("=")[0] == f"--{name}" for word in argv)


def named(argv: Sequence[str], name: str) -> Sequence[str]:
    """A command line whose first words may be the value of a flag, which is then named before them.

    `-` is a value.
    """
    is_value = argv and (argv[0] == "-" or not argv[0].startswith("-"))
    if is_value and not has_flag(argv, name):
        return [f"--{name}", *argv]
    return argv


def refuse_idle_flags(typed: Asked, *configs: Any) -> None:
    """Raise `UsageError` on a typed flag that has no effect (see `option(when=...)`, and `readers`
    of what position encodings and attention rules read). False and "auto" ask for nothing, nor does
    the default of a flag that goes with a value of another.

    Args:
        configs: what the flags were resolved into; of several models that are compared, one must
            read a flag.
    """
    for name, value in typed.items():
        f = _field_in(configs, name)
        asks_nothing = value is False or value == "auto"
        for condition in _conditions(name, f):
            others = [key for key in condition if _values_of(configs, key)]
            is_met = any(_is_met(configs, key, condition[key]) for key in others)
            if asks_nothing or is_met:
                continue
            other = others[0]
            if not condition[other]:
                raise UsageError(
                    f"--{name} has no effect without --{other}; give it, or leave this flag out"
                )
            given = f"--{name}" if value is True else f"--{name} {value}"
            only = re.sub(r", ([^,]*)$", r" or \1", ", ".join(condition[other]))
            has = _values_of(configs, other)[0]
            idle = f"{given}: has no effect with --{other} {has}, only with {only}; leave it out"
            require(f is not None and value == f.default, idle)


def _conditions(name: str, f: Field | None) -> list[dict[str, Sequence[str]]]:
    """What a flag has an effect with: each of these must hold, with one of its fields at one of the
    values.
    """
    found: list[dict[str, Sequence[str]]] = [dict(readers(name))]
    for registry in (*PARTS_OF_TRAINING, ADAPTATION_RULES):
        who = registry.readers(name)
        if who:
            found.append({registry.flag: who})
    if f is not None and f.metadata.get("when"):
        other, *values = f.metadata["when"]
        found.append({other: values})
    return [one for one in found if one]


def _field_in(configs: Sequence[Any], name: str) -> Field | None:
    for config in configs:
        f = field_of(type(config), name)
        if f is not None:
            return f
    return None


def _values_of(configs: Sequence[Any], name: str) -> list[Any]:
    return [getattr(config, name) for config in configs if hasattr(config, name)]


def _is_met(configs: Sequence[Any], name: str, accepted: Sequence[str]) -> bool:
    """True if a configuration has one of the accepted values; of none, any but the default."""
    values = _values_of(configs, name)
    if accepted:
        return any(value in accepted for value in values)
    f = _field_in(configs, name)
    return f is not None and any(value != f.default for value in values)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`, and whose help leaves out what nobody has by default.

    Attributes:
        fields: those that flags are made of, by name.
        sections: titles in the help of the fields of configurations.
        default_parts: the registries of which a part is chosen, with its default.
        choosers: of the settings of parts the registries with a part that has it.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.fields: dict[str, Field] = {}
        self.sections: dict[str, str] = {}
        self.default_parts: list[tuple[Registry, Any]] = []
        self.choosers: dict[str, list[Registry]] = {}
        self._titled: dict[str, Any] = {}

    def add_field(self, title: str, f: Field, hint: Any) -> None:
        """Add the flag of a field, in the group of this title."""
        if title not in self._titled:
            self._titled[title] = self.add_argument_group(title)
        self.fields[f.name] = f
        _add_flag(self._titled[title], f, hint)

    def add_settings(self, names: Iterable[str]) -> None:
        """Add flags for these settings of parts, unless they are there: in the group of the flag that
        chooses the part, or in a separate group for a part from a --plugin file.
        """
        for name in names:
            if name in self.fields or name not in self.choosers:
                continue
            registry = self.choosers[name][0]
            part = registry[registry.owners(name)[0]]
            hint = typing.get_type_hints(settings_of(part))[name]
            f = setting_in((registry,), name)
            assert f is not None
            if f.metadata.get("flag", True):
                title = "of your own" if is_from_file(part) else self.sections[registry.flag]
                self.add_field(title, f, hint)

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        flag = message.partition(":")[0].removeprefix("--")
        if "invalid choice" in message and flag in _OF_FILES:
            message += "; the file that defines one of your own is named with --plugin"
        raise UsageError(message)

    def typed(self, argv: Sequence[str], elsewhere: Mapping[str, Sequence[type]]) -> Asked:
        """The values of a command line. Raises `UsageError`, see `read_flags`."""
        known = set(self.choosers)
        for flag, action in self._option_string_actions.items():
            if not action.dest.startswith(RETIRED):
                known.add(flag.removeprefix("--"))
        words = [_underscored(word, known) for word in argv]
        for word in words:
            name = word.partition("=")[0].removeprefix("--")
            self.add_settings([name, name.removeprefix("no_")])
        found, unknown = self.parse_known_args(words)
        if unknown:
            name = unknown[0].partition("=")[0].removeprefix("--").removeprefix("no_")
            for why, others in elsewhere.items():
                for cls in others:
                    require(name not in names_of(cls), f"--{name} {why}; leave it out")
            raise UsageError(_unknown_message(unknown, known))
        return vars(found)

    def preset(self, name: str, entry: Entry) -> Layer:
        """The settings of a preset for a program."""
        values = read_preset(name)[entry]
        return self.layer(values, f"preset {name}", entry)._replace(is_preset=True)

    def layer(self, raw: Mapping[str, Any], origin: str, entry: Entry) -> Layer:
        """The values of a file, each as its flag would have it. Raises `UsageError` that names the
        file and the setting.
        """
        values: Asked = {}
        self.add_settings(raw)
        for key, value in raw.items():
            try:
                self._require_setting(key, entry)
                if value is not None:
                    action = self._option_string_actions[f"--{key}"]
                    found = value_of(action, key, value)
                    values[action.dest] = found
                    self._check(action.dest, found)
            except UsageError as error:
                said = str(error).removeprefix(f"--{key} ")
                raise UsageError(f"{origin}: {key}: {said}") from None
        return Layer(values)

    def _check(self, name: str, value: Any) -> None:
        """Raise `UsageError` if a value is out of the bounds of its field."""
        f = self.fields.get(name)
        if f is not None and value != f.default:  # which may stand for another, as --d_embed -1
            check_field(f, value)

    def _require_setting(self, key: str, entry: Entry) -> None:
        """Raise `UsageError` unless a key of a file is a flag."""
        require(key not in _BY_FLAG_ONLY, f"give it on the command line, as --{key}")
        flags = self._option_string_actions
        if f"--{key}" in flags:
            return
        hint = _hint(key, {*self.choosers, *flags}, like=0.6) or "see --help"
        if entry != "train" and key not in NAMES_ELSEWHERE:
            hint = f"none of {entry}.py; one of train.py stands below [train]"
        raise UsageError(f"no such setting; {hint.replace('--', '', 1)}")

    def asked_for(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Of the settings that a run has noted those that ask for something here: a run notes those
        of parts that it does not have, and of all programs.
        """
        self.add_settings(raw)
        found = {}
        for key, value in raw.items():
            f = self.fields.get(key)
            if f is None or value in ("", []):
                continue
            noted = field_of(Context, key) or f  # what is left open in a reading is not in a run
            if _conditions(key, f) and value == default_of(noted):
                continue
            found[key] = value
        return found

    def show_help(self, topic: str | None) -> None:
        """Print the flags: all but the settings that no part has which is there by default; with a
        topic the flag of that name and the settings of all that it chooses, or every flag. Raises
        `UsageError` if there is no such topic.
        """
        topics = [registry.flag for registry, _ in self.default_parts]
        if topic is None:
            for registry, default in self.default_parts:
                self.add_settings(registry.own(default))
            if topics:
                also = ", ".join(f"--help {name}" for name in topics)
                self.epilog = f"more settings: {also}, --help {ALL}"
            self.print_help()
            return
        self.add_settings(self.choosers)
        if topic == ALL:
            self.print_help()
            return
        shown = []
        for action in self._actions:
            chosen_by = [registry.flag for registry in self.choosers.get(action.dest, ())]
            if action.dest == topic or topic in chosen_by:
                shown.append(action)
        names = ", ".join([*topics, ALL])
        require(bool(shown), f"--help {topic}: no such topic; there are {names}, and all flags")
        formatter = self._get_formatter()
        formatter.start_section(topic)
        formatter.add_arguments(shown)
        formatter.end_section()
        print(formatter.format_help(), end="")


class _Help(argparse.Action):
    """--help and --help TOPIC."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        parser.show_help(values)
        parser.exit()


class _Switch(argparse.Action):
    """--x and --no_x."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, option_string == f"--{self.dest}")


def _switched(word: str) -> bool | str:
    """The value of a flag that is on, off or left to the program."""
    values = {"auto": "auto", "on": True, "off": False}
    if word not in values:
        raise argparse.ArgumentTypeError(f"invalid choice: {word!r} (choose from auto, on, off)")
    return values[word]


def _underscored(word: str, known: Collection[str]) -> str:
    """A word with the flag that it names as it is written here; a value with a space may begin with
    two dashes, too.
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    name = name.replace("-", "_")
    if " " in word and name not in known:
        return word
    return f"--{name}{equals}{value}"


def _add_flags(parser: _Parser, classes: Sequence[type], first: Sequence[str]) -> None:
    """Add a flag for each field, in groups: the `first` ones, then the sections of the classes.
    Settings of parts are added when one is named.
    """
    parser.add_argument(
        "--help",
        "-h",
        action=_Help,
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="TOPIC",
        help=_HELP_HELP,
    )
    # read before all others, by `txl.programs.run`: it may add flags
    parser.add_argument("--plugin", metavar="FILE", default=argparse.SUPPRESS, help=PLUGIN_HELP)
    groups: Groups = {"most used": []}
    for cls in classes:
        section = re.split(r"\.(?=\s+[A-Z]|\s*$)", cls.__doc__ or "")[0]
        hints = typing.get_type_hints(cls)
        for f in fields(cls):
            section = f.metadata.get("section") or section
            if f.metadata.get("flag", True):
                groups.setdefault("most used" if f.name in first else section, []).append(
                    (f, hints[f.name])
                )
            parser.sections[f.name] = section
        for registry in getattr(cls, "parts", ()):
            parser.default_parts.append((registry, getattr(cls, registry.flag)))
    groups["most used"].sort(key=lambda one: first.index(one[0].name))
    for title, members in groups.items():
        for f, hint in members:
            parser.add_field(title, f, hint)
    for registry, _ in parser.default_parts:
        for name in names_of_settings((registry,)):
            parser.choosers.setdefault(name, []).append(registry)
            if name in parser.sections:
                part = registry[registry.owners(name)[0]]
                raise UsageError(taken_setting(part.__name__, name))


def value_of(action: argparse.Action, key: str, value: Any) -> Any:
    """The value for one in a file that a flag has for its words; a list for a flag of several.
    Raises `UsageError`.

    Args:
        key: by which the file calls it; no_x = true is x = false.
    """
    if action.dest.startswith(RETIRED):
        return value
    if isinstance(value, bool):
        is_switch = isinstance(action, _Switch) or action.nargs == 0 or action.const is True
        given = str(value).lower()
        require(is_switch, f"takes a value, and {given} is none; leave it out")
        return value != (key == f"no_{action.dest}")
    require(action.nargs != 0, "is true or false")
    takes_several = action.nargs == "+"
    require(takes_several or not isinstance(value, list), "takes one value, and no list")
    values = value if isinstance(value, list) else [value]
    require(bool(values), "expected at least one value; leave it out")
    found = [_one_value(action, one) for one in values]
    return found if takes_several else found[0]


def _one_value(action: argparse.Action, value: Any) -> Any:
    is_value = isinstance(value, str | int | float) and not isinstance(value, bool)
    require(is_value, f"{str(value)[:40]} is no text and no number; give one")
    kind: Any = action.type or str
    try:
        found = kind(str(value))
    except ValueError:
        raise UsageError(f"invalid {kind.__name__} value: {value!r}") from None
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from None
    if action.choices is not None and found not in action.choices:
        there = ", ".join(map(str, action.choices))
        raise UsageError(f"invalid choice: {value!r} (choose from {there})")
    return found


def _add_flag(group: Any, f: Field, hint: Any) -> None:
    given: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS, "help": _help(f)}
    args = []
    for a in typing.get_args(hint):
        if a is not types.NoneType:
            args.append(a)
    if bool in args and len(args) > 1:
        if int in args:
            kind, shown = int, "int"
        else:
            kind, shown = _switched, "auto|on|off"
        group.add_argument(f"--{f.name}", nargs="?", type=kind, const=True, metavar=shown, **given)
        group.add_argument(
            f"--no_{f.name}", action="store_false", **{**given, "help": argparse.SUPPRESS}
        )
        return
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = args[0]
        args = list(typing.get_args(args[0]))
    if f.name in _CHOICES and hint is str:
        name_of = functools.partial(current_value, f.name)
        group.add_argument(f"--{f.name}", choices=_names(f), type=name_of, **given)
    elif hint is bool:
        group.add_argument(f"--{f.name}", f"--no_{f.name}", action=_Switch, nargs=0, **given)
    elif typing.get_origin(hint) is Literal:
        group.add_argument(f"--{f.name}", choices=args, type=type(args[0]), **given)
    elif f.name == "cutoffs":
        group.add_argument(f"--{f.name}", nargs="+", type=int_or_auto, metavar="int", **given)
    elif typing.get_origin(hint) is tuple:
        given["action"] = "extend" if f.metadata.get("repeats") else "store"
        kind = args[0]
        group.add_argument(f"--{f.name}", nargs="+", type=kind, metavar=kind.__name__, **given)
    else:
        group.add_argument(f"--{f.name}", type=hint, metavar=hint.__name__, **given)


def _names(f: Field) -> list[str]:
    """The names that a flag takes: of the parts, and its default, which may be none of them."""
    default = default_of(f)
    own = [] if default is None or default in _CHOICES[f.name] else [default]
    return [*own, *_CHOICES[f.name]]


def int_or_auto(word: str) -> int | str:
    """The value of a word of --cutoffs."""
    if word == "auto":
        return word
    return int(word)


def _help(f: Field) -> str:
    who: list[str] = []
    others = []
    for condition in _conditions(f.name, f):
        others += condition
        for values in condition.values():
            who += values
    who = who or [f"--{other}" for other in others]
    text = (f"{', '.join(who)}: " if who else "") + f.metadata["help"].replace("%", "%%")
    silent = f.default is None or f.default is False or f.default in ((), MISSING)
    if silent:
        return text
    return f"{text} [{f.default}]"


def _unknown_message(words: Sequence[str], known: Collection[str]) -> str:
    """The error for unknown flags, with similar known ones; words after them
    count as their values.
    """
    names = []
    for word in words:
        if word.startswith("--"):
            names.append(word.partition("=")[0])
    if not words[0].startswith("--"):
        return (
            f"{words[0]}: not a flag, and no flag before it takes it as a value; quote values with"
            " spaces; see --help"
        )
    hints = [_hint(name.removeprefix("--"), known) for name in names]
    if len(names) == 1:
        return f"{names[0]}: no such flag; {hints[0] or 'see --help'}"
    each = []
    for name, hint in zip(names, hints, strict=True):
        each.append(f"{name} ({hint})" if hint else name)
    return f"{', '.join(each)}: no such flags; see --help"


def _hint(name: str, known: Collection[str], *, like: float = 0.75) -> str:
    """What a flag that there is not may be among those that are known; empty if nothing is like it."""
    names = {flag.removeprefix("--") for flag in known} - {name}
    here = NAMES_ELSEWHERE.get(name)
    if here in names:
        return f"here it is --{here}"
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=like)
    return f"did you mean --{near[0]}?" if near else ""
