"""The commands train, eval and generate: the only modules that know both the model and the text."""
