"""The documentation as a site: the pages of this repository and the API reference."""
