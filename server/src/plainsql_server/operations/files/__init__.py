"""Configuration files for other programs: nginx (the alias), PostgreSQL (a cell), Patroni, etcd and systemd."""
