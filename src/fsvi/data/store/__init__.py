"""Where data files are, how they are checked, and how they are downloaded."""
