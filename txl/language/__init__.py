"""A trained model as one object, whoever trained it: `LanguageModel`, which `txl.load` gives."""
