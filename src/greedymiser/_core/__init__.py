"""Tools of all packages, without any learning: compiling, exact sums, threads, files, text."""
