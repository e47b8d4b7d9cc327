"""Orders: control file, ladder, receipt."""
