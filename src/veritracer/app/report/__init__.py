"""Self-contained HTML pages about a model and its recourse, and about an audit of promises."""

from veritracer.app.report.audit_page import write_audit_page
from veritracer.app.report.page import write_report

__all__ = ["write_audit_page", "write_report"]
