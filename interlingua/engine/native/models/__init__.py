"""One file per model family, found by scanning this folder; each states the architectures that it serves."""
