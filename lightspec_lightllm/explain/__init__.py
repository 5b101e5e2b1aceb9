"""``lightspec plan --explain``: one decision of the ``lightspec`` strategy, with everything it was weighed against."""
