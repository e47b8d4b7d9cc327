"""The record of a run: records, writer, reader, fold, verify."""
