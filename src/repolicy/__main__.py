"""The command's entry point, which handles a Ctrl-C even during the imports, as they take half a second."""

import signal
import sys


def main() -> None:
    """Run the command line; a Ctrl-C outside of its own handlers, early or late, prints no traceback."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts `repolicy ... &` with SIGINT ignored
    try:
        from repolicy.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("repolicy: stopped", file=sys.stderr)
        sys.exit(130)
    finally:  # one more Ctrl-C while Python shuts down would change the exit code
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
