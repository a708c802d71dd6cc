"""Reports: tables next to the paper's, figures, one HTML page and Markdown."""
