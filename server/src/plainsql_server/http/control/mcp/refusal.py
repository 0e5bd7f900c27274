"""The error of a tool that refuses a call, in the service's own words."""


class Refused(Exception):
    """The call is refused. The message contains nothing from a database."""
