"""The text library: words, ids and files of text, not models. Of txl it imports only `config`,
`files` and `registry`.

In a clone `import data_utils` gives the same modules; no top-level name `data_utils` is installed,
which other projects have too."""
