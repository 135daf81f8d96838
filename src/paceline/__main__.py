"""python -m paceline: the command line, where the script `paceline` is not on the path."""

from paceline.cli import main

if __name__ == "__main__":
    main()
