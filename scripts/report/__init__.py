"""Reports of what was measured; scripts/*.py call this package.

reads     records, sidecars, runs, training_runs
computes  figures, sweep_parts, planner_checks, comparison, step_figures, claims/
says      pages, sweep_part_pages, peer_tables: as blocks of a document; plots/: as pictures
writes    rendering, by templates/; assemble puts a whole report together; working says how far it is
"""
