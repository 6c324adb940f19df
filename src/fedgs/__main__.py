"""``python -m fedgs`` is the ``fedgs`` command."""

from fedgs.cli import main

if __name__ == "__main__":
    main()
