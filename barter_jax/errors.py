"""The exception that reports a user's mistake."""


class UserError(ValueError):
    """A mistake in what the user asked for: one line that names the field and the remedy; exit
    code 2."""
