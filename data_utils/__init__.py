"""The text library: words, ids and files of text, not models. Of txl it imports only `config`,
`files` and `registry`.

It is imported as `txl.data_utils`: in a checkout txl/data_utils is a link to this folder, and a
wheel has the files there. So no top-level name `data_utils` is installed, which other projects have
too."""
