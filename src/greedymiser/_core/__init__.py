"""What every room may use and nothing of it learns: compiling, exact sums, threads, files, text."""
