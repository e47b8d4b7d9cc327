"""The drill: a stop tried on a throwaway fleet, and scored."""
