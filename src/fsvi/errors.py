"""The errors that fsvi raises. Each message is one sentence that names the value and says what to do.

Examples:
    >>> try:
    ...     fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), prior_variance=-1.0)
    ... except fsvi.errors.InvalidInputError as error:
    ...     print(error)
    prior_variance=-1.0 must be a finite number above 0.
"""


class FSVIError(Exception):
    """The base of every error that fsvi raises on purpose."""


class InvalidInputError(FSVIError, ValueError):
    """A value that the user gave cannot be used."""


class HeadError(InvalidInputError):
    """The network does not end in a linear layer that fsvi can find."""


class NonFiniteLossError(FSVIError, ArithmeticError):
    """A term of the loss became NaN or infinite, and training stopped before it could spoil the parameters."""


class ProcessLostError(FSVIError, RuntimeError):
    """Another process of the same training has ended, or does not answer."""


class SingularCovarianceError(FSVIError, ArithmeticError):
    """A covariance of function values has no Cholesky factor."""


class FileFormatError(FSVIError, ValueError):
    """A file is truncated, was changed, or does not fit this network."""


class DataNotFoundError(FSVIError, FileNotFoundError):
    """A dataset was found in none of the folders searched and could not be downloaded."""
