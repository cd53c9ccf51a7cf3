"""What an order means for the hardware that reads it, and how well it shuffles: closed forms, no epoch is made."""
