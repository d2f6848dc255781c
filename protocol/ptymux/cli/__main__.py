import sys

from ptymux.cli.main import main

sys.exit(main())
