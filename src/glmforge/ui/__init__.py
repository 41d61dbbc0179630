"""Pages: results of the rooms below as self-contained HTML."""
