"""The two exception types whose message is all that the user needs."""


class UserError(ValueError):
    """A mistake in what the user asked for: one line naming the field and the remedy; exit 2."""


class RunError(RuntimeError):
    """A failure that is explained in one line: a diverged run, a damaged checkpoint; exit 1."""
