"""``python -m cli`` is ``paceline``."""

from cli.app import main

main()
