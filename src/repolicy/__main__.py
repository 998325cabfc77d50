"""Where the command begins: its imports take half a second, in which a Ctrl-C may come, too."""

import signal
import sys


def main() -> None:
    """Run the command line. A Ctrl-C before its nets are out, or one more behind the last of them, is no traceback."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's `repolicy ... &` begins with it ignored
    try:
        from repolicy.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("repolicy: stopped", file=sys.stderr)
        sys.exit(130)
    finally:  # Python still takes a moment to end, in which one more would change the exit code
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
