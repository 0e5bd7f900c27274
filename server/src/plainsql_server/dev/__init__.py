"""`plainsql-server dev`: the whole service on one machine, in one folder of the user's.

Owns starting, watching and stopping the parts. Refuses to hold any rule of the service itself: the planes
are the real ones, started as `plainsql-server data` and `plainsql-server control` with real settings.
"""
