"""The two exception types whose message is all that the user needs."""


class UserError(ValueError):
    """A mistake in what the user asked for: one line naming the field and the remedy; exit 2."""


class RunError(RuntimeError):
    """A failure that is explained in one line: a diverged run, a damaged checkpoint; exit 1."""


class AloneError(Exception):
    """An error in one of several processes, of which the others know nothing.

    They wait for this one, and it must not wait for them: it ends at once.

    Attributes:
      exit_code: 2 for a user's mistake, 1 otherwise.
    """

    def __init__(self, exit_code: int, text: str):
        super().__init__(text)
        self.exit_code = exit_code
