"""The ledger in a database: everything that needs SQLAlchemy, imported when a ledger is opened."""
