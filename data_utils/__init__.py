"""The text library: words, ids and files of text, not models. Of txl it imports only `config` and `files`."""
