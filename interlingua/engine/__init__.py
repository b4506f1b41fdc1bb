"""Engines: what turns a prepared request into tokens."""
