"""The command `plainsql`: parses, calls, prints.

Owns the way from arguments to an exit code. Standard output is data alone; everything said to people goes to standard
error. Each subcommand is in a module of its own, imported when it is called, so that `--help` is quick.

Exit codes: 0 done; 1 the service said no; 2 wrong usage or settings; 3 the credential is not good for it; 4 the service
or the network is away; 130 interrupted.
"""

import sys
from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ACCESS = 3
EXIT_AWAY = 4
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or the process' own, and returns its exit code."""
    from plainsql.command.arguments import parse  # noqa: PLC0415  # see above

    options = parse(sys.argv[1:] if arguments is None else list(arguments))
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has read enough.
        sys.stderr.close()
        return 0
    except Exception as error:
        from plainsql.command.failures import exit_code_of, show  # noqa: PLC0415  # see above

        code = exit_code_of(error)
        show(error)
    return code


def entry() -> None:
    """What the installed script calls."""
    sys.exit(main())
