"""What was measured, each as a script of its own. Ratios count: the machines are noisy."""
