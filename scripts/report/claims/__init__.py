"""What guides claim, beside what sweeps and dry runs measured: findings -> verdicts -> the page of claims."""
