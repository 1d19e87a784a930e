"""The one exception for a mistake that the user can mend."""


class UserError(Exception):
    """A mistake outside the program: its text says what was found, what was expected, and what mends it.

    The command line prints the text without a traceback and exits with 2.
    """
