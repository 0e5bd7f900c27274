"""`plainsql-server org …` and `plainsql-server usage`: organizations, from signing up to purging, and what they use."""
