"""The docker backend against a real engine: containers, their stdio, stops, and an engine that fails."""
