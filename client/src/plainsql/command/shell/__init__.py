"""The interactive shell of the `plainsql` command, which also runs scripts from a pipe."""
