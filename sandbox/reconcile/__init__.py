"""What is alive and should not be: observers, classification, findings, and ending what is proven."""
