"""What a run leaves: the record, its tables, the published numbers beside it, and what it says about the gain."""
