"""Planning without a model: seeded workloads, arms that compete on them, and how far each is from the optimum."""
