"""The errors of a tool that refuses a call, in the service's own words."""


class Refused(Exception):
    """The call is refused. The message contains nothing from a database."""


class Lost(Refused):
    """The call was sent on, and there is no answer that can be used. If it was to write, it may have."""


class TooLarge(Lost):
    """The answer is larger than this process reads."""
