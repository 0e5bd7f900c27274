"""Commands that prepare a machine: its systemd units."""
