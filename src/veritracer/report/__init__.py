"""HTML reports on models and audits."""
