"""The `kdeploy` command: the error boundary around the verbs."""

import os
import signal
import sys
from collections.abc import Callable

from deploy import __version__, errors
from deploy.homes import state_dir


def main() -> None:
    """Run `sys.argv` and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted_once())
    code = run(sys.argv[1:])
    # Python puts the default disposition back as it ends: an impatient second Ctrl-C would then replace the exit code
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _interrupted_once() -> Callable[[int, object], None]:
    """A handler that interrupts at the first Ctrl-C; more of them do not cut short what is told about it."""
    pressed = False

    def handler(_number: int, _frame: object) -> None:
        nonlocal pressed
        if not pressed:
            pressed = True
            raise KeyboardInterrupt

    return handler


def run(arguments: list[str]) -> int:
    """Run one command line; its exit code. Every failure that is not our bug ends in three parts, never a traceback."""
    try:
        return _dispatch(arguments)
    except errors.KdeployError as error:
        return _told(error, arguments)
    except KeyboardInterrupt:
        return errors.DETACHED
    except BrokenPipeError:
        return errors.OK
    except Exception as error:
        return _bug(error)


def _dispatch(arguments: list[str]) -> int:
    if os.path.exists(os.path.join(state_dir(), "swaps", "open")):
        from deploy.commands.swapping import take_up

        take_up()
    if arguments in (["ps"], ["ps", "--json"]):
        # what prompts and scripts call all day: without click it costs half
        from deploy.commands.overview import overview

        overview(as_json=len(arguments) == 2)
        return errors.OK
    import click

    from deploy.verbs import group

    try:
        # click would import shutil to learn the width, a tenth of what `--help` costs
        outcome = group.main(arguments, prog_name="kdeploy", standalone_mode=False, terminal_width=_columns())
        return outcome if isinstance(outcome, int) else errors.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort:
        return errors.DETACHED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return errors.USAGE
    except click.ClickException as error:
        hint = f"{error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        raise errors.usage(error.format_message(), fix=[hint] if hint else []) from None


def _columns() -> int:
    """The width of help texts."""
    try:
        return max(50, min(os.get_terminal_size().columns, 80) - 2)
    except OSError:
        return 78


def _told(error: errors.KdeployError, arguments: list[str]) -> int:
    from deploy.console import output

    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in flags:
        output.document(error.to_json())
    output.error(error)
    return error.code


def _bug(error: Exception) -> int:
    """A fault of ours: the traceback goes to a file, not into the user's face."""
    import tempfile
    import traceback

    text = f"kdeploy {__version__}, Python {sys.version}\n{sys.argv}\n\n" + "".join(traceback.format_exception(error))
    from deploy.console.output import say

    say(f"error: a fault of kdeploy itself: {type(error).__name__}: {error}")
    try:
        fd, path = tempfile.mkstemp(prefix="kdeploy-fault-", suffix=".txt")
        with os.fdopen(fd, "w") as file:
            file.write(text)
        say(f"  {path} holds the details")
    except OSError:
        say(text)
    return errors.FAILED
