"""The trade-off report: records -> figures -> claims, plots -> pages. scripts/report.py puts them together."""
