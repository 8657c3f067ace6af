"""Population-based training: several policies learn, and the worst continue from the best with other numbers."""
