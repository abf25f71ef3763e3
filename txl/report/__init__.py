"""A page to look at: what memory is worth to trained models, drawn from report.json alone."""
