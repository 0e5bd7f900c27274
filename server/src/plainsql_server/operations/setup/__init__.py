"""Prepares one machine for the whole service: users, certificates, clusters, files. `plainsql-server setup`."""
