"""LinearTCA, MLPTCA and ConditionalTCA, their mathematics and their saved state."""
