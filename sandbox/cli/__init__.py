"""What a person types: one file a verb; parse, call, print."""
