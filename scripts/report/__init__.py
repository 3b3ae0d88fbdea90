"""Reports of what was measured: records -> figures -> claims, plots -> pages. The scripts beside this folder call it."""
