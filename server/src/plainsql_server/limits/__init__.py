"""Limits: what each tier may use. Imports core alone; refuses to know who is asking."""
