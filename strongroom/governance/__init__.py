"""Who may promote what, and how that is explained to a stranger."""
