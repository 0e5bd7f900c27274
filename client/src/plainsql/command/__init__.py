"""The `plainsql` command: parses the arguments, runs the subcommand, returns the exit code.

Standard output carries data only. All messages go to standard error. Each subcommand lives in its own module, which is
imported only when the subcommand runs; this keeps `--help` fast.

Exit codes: 0 success; 1 the service returned an error; 2 invalid usage or settings; 3 the credential was rejected, or
lacks the scope; 4 the service or the network is unavailable; 5 a rate limit was reached; 130 interrupted.
"""

import sys
from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 4
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments (default: `sys.argv`) and returns its exit code."""
    from plainsql.command.arguments import parse  # noqa: PLC0415  # see above

    options = parse(sys.argv[1:] if arguments is None else list(arguments))
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. That is not an error.
        sys.stderr.close()
        return 0
    except Exception as error:
        from plainsql.command.failures import exit_code_of, show  # noqa: PLC0415  # see above

        code = exit_code_of(error)
        show(error)
    return code


def entry() -> None:
    """The entry point of the installed script."""
    sys.exit(main())
