"""Configuration files for other programs: nginx as the alias, PostgreSQL as a cell, Patroni and etcd."""
