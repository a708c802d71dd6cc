"""The command line inside a test: what it printed, its exit code, and the error before it became a sentence."""

import io
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

from fsvi.cli import make_parser


def invoke(*arguments):
    out, err, code, exception = io.StringIO(), io.StringIO(), 0, None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            options = make_parser().parse_args(list(map(str, arguments)))
            options.run(options)
        except SystemExit as error:
            code = error.code
        except Exception as error:
            code, exception = 1, error
    stdout, stderr = out.getvalue(), err.getvalue()
    return SimpleNamespace(exit_code=code, exception=exception, stdout=stdout, stderr=stderr, output=stdout + stderr)
