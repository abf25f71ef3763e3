"""The text library: words, ids and files of text, not models. Of txl it imports only `config`,
`files` and `registry`.

In a clone, `import data_utils` gives the same modules. A wheel installs no top-level `data_utils`:
other projects use that name."""
