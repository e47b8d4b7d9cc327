"""Worktrees of tasks, through the git command: made, watched, checkpointed, guarded, removed without loss."""
