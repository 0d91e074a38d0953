"""What runs and what the archive may lack, in memory; and the projection of a deliberation for clients."""
