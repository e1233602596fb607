"""LinearTCA, MLPTCA and ConditionalTCA, their mathematics, their saved state, and the registry of adapters."""
