"""Sockets and headers: from HTTP to the dialects' pure functions and to the service, and back."""
